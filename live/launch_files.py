"""Launch files for clusters, as text: a Slurm batch script, a Kubernetes manifest."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from dataclasses import dataclass

PORT = 29500  # of torchrun's rendezvous, on the first pod
RESTARTS_MAX = 10
# Without it ranks that torchrun restarts find the addresses of the dead ones in its store, and wait for them.
FRESH_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"


@dataclass(frozen=True)
class Launch:
    """The job to launch: script, policy, nodes and GPUs."""

    name: str
    nodes: int
    gpus_per_node: int
    script: str
    policy_file: str
    policy_text: str = ""  # content of that file; Kubernetes only
    image: str = "IMAGE"  # Kubernetes only
    time_limit: str = "24:00:00"  # Slurm only

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.gpus_per_node < 1:
            raise ValueError("nodes and gpus_per_node must be at least 1")

    @property
    def label(self) -> str:
        """The name as Kubernetes and Slurm accept it (RFC 1035): a letter, then letters, digits and dashes."""
        text = re.sub(r"[^a-z0-9-]+", "-", self.name.lower()).strip("-")
        return (text if text[:1].isalpha() else f"equipoise-{text}")[:50].strip("-")


def slurm(launch: Launch) -> str:
    """A batch script: torchrun on every node, which starts a rank per GPU, and restarts them all when one dies.

    Before the time limit ranks get SIGTERM, and the job is requeued; Slurm itself requeues it when a node fails.
    Each time training resumes from its checkpoint.
    """
    return f"""#!/bin/bash
#SBATCH --job-name={launch.label}
#SBATCH --nodes={launch.nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={launch.gpus_per_node}
#SBATCH --time={launch.time_limit}
#SBATCH --requeue
#SBATCH --signal=B:TERM@120
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
set -uo pipefail

export EQUIPOISE_POLICY={shlex.quote(launch.policy_file)}
export {FRESH_STORE}
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --cpus-per-task="$SLURM_CPUS_ON_NODE" python -m torch.distributed.run --nnodes="$SLURM_NNODES" \\
  --nproc-per-node={launch.gpus_per_node} --max-restarts={RESTARTS_MAX} --rdzv-backend=c10d \\
  --rdzv-id="$SLURM_JOB_ID" --rdzv-endpoint="$first:$((20000 + SLURM_JOB_ID % 20000))" \\
  {shlex.quote(launch.script)} &
ranks=$!
trap 'kill -TERM "$ranks"' TERM
wait "$ranks"
code=$?
if kill -0 "$ranks" 2>/dev/null; then # the signal ended the first wait
  wait "$ranks"
  code=143
fi
if [ "$code" -ge 128 ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {RESTARTS_MAX} ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""


def kubernetes(launch: Launch) -> str:
    """The policy, a Service by which pods find the first one, and an indexed Job with torchrun in a pod per node.

    A lost pod is replaced; torchrun then restarts all ranks, which resume from their checkpoint.
    """
    label = _quoted(launch.label)
    return f"""apiVersion: v1
kind: ConfigMap
metadata:
  name: {launch.label}-policy
data:
  policy.yaml: |
{textwrap.indent(launch.policy_text.rstrip(), "    ")}
---
apiVersion: v1
kind: Service
metadata:
  name: {label}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {{app: {label}}}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: {label}
spec:
  completions: {launch.nodes}
  parallelism: {launch.nodes}
  completionMode: Indexed
  backoffLimit: {RESTARTS_MAX * launch.nodes}
  podFailurePolicy:
    rules:
      - action: Ignore
        onPodConditions: [{{type: DisruptionTarget, status: "True"}}]
  template:
    metadata:
      labels: {{app: {label}}}
    spec:
      subdomain: {label}
      restartPolicy: Never
      terminationGracePeriodSeconds: 120
      containers:
        - name: train
          image: {_quoted(launch.image)}
          command: [python, -m, torch.distributed.run]
          args:
            - --nnodes={launch.nodes}
            - --nproc-per-node={launch.gpus_per_node}
            - --max-restarts={RESTARTS_MAX}
            - --rdzv-backend=c10d
            - --rdzv-id={launch.label}
            - --rdzv-endpoint={launch.label}-0.{launch.label}:{PORT}
            - {_quoted(launch.script)}
          env:
            - {{name: EQUIPOISE_POLICY, value: /policy/policy.yaml}}
            - {{name: {FRESH_STORE.partition("=")[0]}, value: "1"}}
          resources:
            limits: {{nvidia.com/gpu: {launch.gpus_per_node}}}
          volumeMounts:
            - {{name: policy, mountPath: /policy}}
            - {{name: shared-memory, mountPath: /dev/shm}}
      volumes:
        - name: policy
          configMap: {{name: {launch.label}-policy}}
        - name: shared-memory
          emptyDir: {{medium: Memory}}
"""


def _quoted(text: str) -> str:
    """A YAML double-quoted scalar; a JSON string is one."""
    return json.dumps(text)
