"""Launch files of a sweep that is spread over machines: a Slurm job array, a Kubernetes indexed job.

Each task makes one shard (with --until: whole points) and needs only the sweep's files and a folder that all can
write to; `equipoise merge` puts the shards together.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Any

import yaml


@dataclass(frozen=True)
class SweepLaunch:
    """Contents of a launch file: shards, processes per shard, further options of `sweep`, container image."""

    file: str
    out: str
    shards: int
    jobs: int = 1
    options: tuple[str, ...] = ()
    image: str = "IMAGE"
    claim: str = "CLAIM"

    def command(self, shard: str) -> str:
        """The shell command of one shard; `shard` is a shell expression for its number, from 1."""
        words = ["equipoise", "sweep", self.file, "--out", self.out, *self.options, "--quiet"]
        number = f'"{shard}/{self.shards}"'
        return f"{shlex.join(words)} --jobs {self.jobs} --shard {number}"


def slurm(launch: SweepLaunch) -> str:
    """A batch script for `sbatch`: one task of the array per shard."""
    return f"""#!/bin/sh
#SBATCH --job-name=sweep
#SBATCH --array=1-{launch.shards}
#SBATCH --cpus-per-task={launch.jobs}
#SBATCH --requeue
# A task that is started again makes only what is missing. Exit code 3: some runs failed, the rest is there.
{launch.command("$SLURM_ARRAY_TASK_ID")} || test $? -eq 3

# Afterwards: {shlex.join(["equipoise", "merge", launch.out])}
"""


def kubernetes(launch: SweepLaunch) -> str:
    """An indexed Job (batch/v1): one pod per shard; the volume claim is mounted at /data."""
    container: dict[str, Any] = {
        "name": "sweep",
        "image": launch.image,
        "workingDir": "/data",
        "command": ["sh", "-c"],
        "args": [f"{launch.command('$((JOB_COMPLETION_INDEX + 1))')} || test $? -eq 3"],
        "resources": {"requests": {"cpu": str(launch.jobs)}},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": _dns_name(launch.file)},
        "spec": {
            "completionMode": "Indexed",
            "completions": launch.shards,
            "parallelism": launch.shards,
            "backoffLimit": 4,
            "template": {
                "spec": {
                    "restartPolicy": "OnFailure",
                    "containers": [container],
                    "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": launch.claim}}],
                }
            },
        },
    }
    text: str = yaml.safe_dump(job, sort_keys=False, width=1000)
    return text


def _dns_name(file: str) -> str:
    """A name that Kubernetes accepts: small letters, digits and hyphens, at most 63."""
    stem = file.rpartition("/")[2].rpartition(".")[0] or file
    return f"sweep-{re.sub(r'[^a-z0-9]+', '-', stem.lower()).strip('-')}"[:63].rstrip("-")


FORMS = {"slurm": slurm, "k8s": kubernetes}
