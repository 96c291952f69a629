"""Launch files for clusters, as text: a Slurm batch script, a Kubernetes manifest."""

from __future__ import annotations

import json
import re
import secrets
import shlex
import textwrap
from dataclasses import dataclass

PORT = 29500  # of the store in its own pod
RESTARTS_MAX = 10


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
    """A batch script: a launcher on every node, which starts a rank per GPU, and restarts dead ones.

    The store runs on the first node as well, on a free port. A lost node does not end the job step
    (`--no-kill`, `--kill-on-bad-exit=0`); the group is formed anew inside the allocation. Before the time limit,
    and when the store is lost, ranks get SIGTERM and the job is requeued, to resume from its checkpoint.
    """
    script = shlex.quote(launch.script)
    return f"""#!/bin/bash
#SBATCH --job-name={launch.label}
#SBATCH --nodes={launch.nodes}
#SBATCH --ntasks-per-node={launch.gpus_per_node}
#SBATCH --gpus-per-node={launch.gpus_per_node}
#SBATCH --time={launch.time_limit}
#SBATCH --no-kill
#SBATCH --requeue
#SBATCH --signal=B:TERM@120
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
set -uo pipefail

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address="$PWD/.equipoise-store-$SLURM_JOB_ID"
rm -f "$address" "$address.done"
EQUIPOISE_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(16))')
export EQUIPOISE_TOKEN
export EQUIPOISE_POLICY={shlex.quote(launch.policy_file)}

srun --nodes=1 --ntasks=1 --nodelist="$first" --overlap \\
  python -m equipoise.live.group.store --host "$first" --port 0 --address-file "$address" &
store=$!
trap 'kill "$store" 2>/dev/null; rm -f "$address" "$address.done"' EXIT
while [ ! -s "$address" ]; do
  kill -0 "$store" 2>/dev/null || {{ echo "equipoise: the store did not start" >&2; exit 1; }}
  sleep 0.2
done

srun --ntasks="$SLURM_NNODES" --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_ON_NODE" --kill-on-bad-exit=0 \\
  --overlap bash -c 'python -m equipoise.live.group.launch --store "$(cat "$0")" --nodes "$SLURM_NNODES" \\
  --node-rank "$SLURM_NODEID" --ranks {launch.gpus_per_node} --max-restarts {RESTARTS_MAX} "$1" &&
  touch "$0.done"' \\
  "$address" {script} &
ranks=$!
trap 'kill -TERM "$ranks"' TERM
wait "$ranks"
code=$?
if kill -0 "$ranks" 2>/dev/null; then # the signal ended the first wait
  wait "$ranks"
  code=143
fi
if [ -e "$address.done" ]; then # trained to the end, whatever a lost node says
  exit 0
fi
if [ "$code" -ge 128 ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {RESTARTS_MAX} ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""


def kubernetes(launch: Launch) -> str:
    """The job's store, and an indexed job with one pod per node; a lost pod is replaced, and joins again.

    The store has a separate Service. When its pod is lost, all ranks end, their pods are replaced, and training
    resumes from its checkpoint. The token in the Secret is new each time.
    """
    store = f"{launch.label}-store"
    parts = (_settings(launch), _service(_quoted(launch.label)), _service(store), _store(launch), _job(launch))
    return "---\n".join(parts)


def _settings(launch: Launch) -> str:
    """The token, and the policy file."""
    return f"""apiVersion: v1
kind: Secret
metadata:
  name: {launch.label}-token
stringData: {{token: {_quoted(secrets.token_hex(16))}}}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: {launch.label}-policy
data:
  policy.yaml: |
{textwrap.indent(launch.policy_text.rstrip(), "    ")}
"""


def _service(name: str) -> str:
    """A name under which the pods with that label are found, ready or not."""
    return f"""apiVersion: v1
kind: Service
metadata:
  name: {name}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {{app: {name}}}
"""


def _token(launch: Launch) -> str:
    return f"""
            - name: EQUIPOISE_TOKEN
              valueFrom: {{secretKeyRef: {{name: {launch.label}-token, key: token}}}}"""


def _store(launch: Launch) -> str:
    """The pod of the store, replaced when it is lost."""
    store = f"{launch.label}-store"
    return f"""apiVersion: apps/v1
kind: Deployment
metadata:
  name: {store}
spec:
  replicas: 1
  strategy: {{type: Recreate}}
  selector:
    matchLabels: {{app: {store}}}
  template:
    metadata:
      labels: {{app: {store}}}
    spec:
      containers:
        - name: store
          image: {_quoted(launch.image)}
          command: [python, -m, equipoise.live.group.store]
          args: [--host, $(POD_IP), --port, "{PORT}"]
          env:
            - name: POD_IP
              valueFrom: {{fieldRef: {{fieldPath: status.podIP}}}}{_token(launch)}
"""


def _job(launch: Launch) -> str:
    """One pod per node, each with the ranks of its GPUs."""
    label = _quoted(launch.label)
    return f"""apiVersion: batch/v1
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
          command: [python, -m, equipoise.live.group.launch]
          args:
            - --store={launch.label}-store:{PORT}
            - --nodes={launch.nodes}
            - --node-rank=$(JOB_COMPLETION_INDEX)
            - --ranks={launch.gpus_per_node}
            - --max-restarts={RESTARTS_MAX}
            - {_quoted(launch.script)}
          env:
            - {{name: EQUIPOISE_POLICY, value: /policy/policy.yaml}}{_token(launch)}
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
