"""Launch files for clusters, as text: a Slurm batch script, a Kubernetes manifest."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from dataclasses import dataclass

PORT = 29500


@dataclass(frozen=True)
class Launch:
    """What is started where."""

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
    """A batch script: one task per GPU, each a rank, so that the others outlive one that dies.

    The store runs beside them on the first node. Ranks die without ending the job step (`--no-kill`,
    `--kill-on-bad-exit=0`); the group is formed anew inside the allocation.
    """
    script = shlex.quote(launch.script)
    return f"""#!/bin/bash
#SBATCH --job-name={launch.label}
#SBATCH --nodes={launch.nodes}
#SBATCH --ntasks-per-node={launch.gpus_per_node}
#SBATCH --gpus-per-node={launch.gpus_per_node}
#SBATCH --time={launch.time_limit}
#SBATCH --no-kill
set -euo pipefail

export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT={PORT}
export EQUIPOISE_STORE="$MASTER_ADDR:$MASTER_PORT"
EQUIPOISE_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(16))')
export EQUIPOISE_TOKEN
export EQUIPOISE_POLICY={shlex.quote(launch.policy_file)}
export WORLD_SIZE=$SLURM_NTASKS

srun --nodes=1 --ntasks=1 --nodelist="$MASTER_ADDR" --overlap \\
  python -m equipoise.live.group.store --host "$MASTER_ADDR" --port "$MASTER_PORT" &
store=$!
trap 'kill "$store"' EXIT

srun --kill-on-bad-exit=0 --overlap bash -c \\
  'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec python "$0"' {script}
"""


def kubernetes(launch: Launch) -> str:
    """A headless service, the policy, and an indexed job with one pod per node under torchrun."""
    label = _quoted(launch.label)
    return f"""apiVersion: v1
kind: Service
metadata:
  name: {label}
spec:
  clusterIP: None
  selector: {{app: {label}}}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: {launch.label}-policy
data:
  policy.yaml: |
{textwrap.indent(launch.policy_text.rstrip(), "    ")}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: {label}
spec:
  completions: {launch.nodes}
  parallelism: {launch.nodes}
  completionMode: Indexed
  backoffLimit: 0
  template:
    metadata:
      labels: {{app: {label}}}
    spec:
      subdomain: {label}
      restartPolicy: Never
      containers:
        - name: train
          image: {_quoted(launch.image)}
          command: [torchrun]
          args:
            - --nnodes={launch.nodes}
            - --nproc-per-node={launch.gpus_per_node}
            - --node-rank=$(JOB_COMPLETION_INDEX)
            - --master-addr={launch.label}-0.{launch.label}
            - --master-port={PORT}
            - {_quoted(launch.script)}
          env:
            - {{name: EQUIPOISE_POLICY, value: /policy/policy.yaml}}
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
