#!/bin/bash
# Copy this, and change nodes, GPUs per node (twice), time limit, policy file and script.
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --signal=B:TERM@120
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
set -uo pipefail

export EQUIPOISE_POLICY=policy.yaml
# Without it ranks that torchrun restarts find the addresses of the dead ones in its store, and wait for them.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --cpus-per-task="$SLURM_CPUS_ON_NODE" python -m torch.distributed.run --nnodes="$SLURM_NNODES" \
  --nproc-per-node=8 --max-restarts=10 --rdzv-backend=c10d \
  --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$first:$((20000 + SLURM_JOB_ID % 20000))" \
  train.py &
ranks=$!
trap 'kill -TERM "$ranks"' TERM
wait "$ranks"
code=$?
if kill -0 "$ranks" 2>/dev/null; then # the signal ended the first wait
  wait "$ranks"
  code=143
fi
if [ "$code" -ge 128 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 10 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
