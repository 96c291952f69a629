import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from equipoise.cli import main
from equipoise.study.runs.launch import SweepLaunch, kubernetes, slurm
from equipoise.study.runs.store import Ledger
from tests.study.runs.sweeps.sweep_helpers import TIMINGS, write_sweep

ROOT = Path(__file__).resolve().parents[4]
DOC = (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")


def checked_by_shell(script, tmp_path):
    path = tmp_path / "script.sh"
    path.write_text(script)
    for shell in ("sh", "bash"):
        done = subprocess.run([shell, "-n", str(path)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return path


@pytest.fixture
def on_path(tmp_path):
    """An environment in which `equipoise` is this checkout."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "equipoise"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m equipoise.cli "$@"\n')
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


def results(out):
    with Ledger(out) as ledger:
        return [{k: v for k, v in row.items() if k not in TIMINGS} for row in ledger.rows()]


def test_a_slurm_array_makes_the_whole_sweep(tmp_path, on_path, capsys):
    folder = tmp_path / "with space"
    file = write_sweep(folder, seeds=2, covs=(0.1,))
    out = folder / "out"
    assert main(["sweep", str(file), "--out", str(out), "--launch", "slurm", "--shards", "2"]) == 0
    script = checked_by_shell(capsys.readouterr().out, tmp_path)
    assert "#SBATCH --array=1-2" in script.read_text()
    assert main(["sweep", str(file), "--out", str(out), "--shard", "1/2", "-q"]) == 0
    environment = on_path | {"SLURM_ARRAY_TASK_ID": "2"}  # the first task's part is made
    subprocess.run(["sh", str(script)], env=environment, check=True, capture_output=True)
    merge = re.search(r"# Afterwards: (.*)", script.read_text())[1]
    subprocess.run(["sh", "-c", merge], env=on_path, check=True, capture_output=True)
    assert main(["sweep", str(file), "--out", str(tmp_path / "whole"), "-q"]) == 0
    assert results(out) == results(tmp_path / "whole")


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("a/My sweep_1.yaml", "sweep-my-sweep-1"),
        ("x.yaml", "sweep-x"),
        ("plain", "sweep-plain"),
        (f"{'a' * 57}b.yaml", f"sweep-{'a' * 57}"),
        (f"{'a' * 56}-b.yaml", f"sweep-{'a' * 56}"),
        (f"{'a' * 55}-b.yaml", f"sweep-{'a' * 55}-b"),
    ],
)
def test_names_of_at_most_63_characters(file, name):
    launch = SweepLaunch(file, "out", 3)
    assert yaml.safe_load(kubernetes(launch))["metadata"]["name"] == name
    assert launch.command("$K").endswith('--quiet --jobs 1 --shard "$K/3"')
    assert "#SBATCH --cpus-per-task=1\n" in slurm(launch)


def test_a_kubernetes_job_asks_for_every_shard_once(tmp_path):
    launch = SweepLaunch("my sweeps/Big_Sweep.v2.yaml", "out", 3, 4, ("--until", "ci:2%"), "registry/image:1", "disk")
    job = yaml.safe_load(kubernetes(launch))
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", job["metadata"]["name"])
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"]) == ("Indexed", 3)
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == "registry/image:1"
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == "disk"
    assert pod["volumes"][0]["name"] == container["volumeMounts"][0]["name"]
    seen = []
    for index in range(3):
        echo = container["args"][0].replace("equipoise ", "printf '%s\\n' ", 1)
        shown = subprocess.run(
            ["sh", "-c", echo],
            env=os.environ | {"JOB_COMPLETION_INDEX": str(index)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        assert shown[:2] == ["sweep", "my sweeps/Big_Sweep.v2.yaml"]
        assert "ci:2%" in shown
        seen.append(shown[shown.index("--shard") + 1])
    assert seen == ["1/3", "2/3", "3/3"]


def test_failed_runs_do_not_restart_a_task_but_failures_do(tmp_path):
    command = slurm(SweepLaunch("s.yaml", "out", 2)).splitlines()[-3]
    for code, wanted in ((0, 0), (3, 0), (1, 1), (2, 1)):
        line = re.sub(r"^equipoise .* \|\|", f"(exit {code}) ||", command)
        assert subprocess.run(["sh", "-c", line], check=False).returncode == wanted


def test_a_wrong_sweep_is_told_before_anything_is_launched(tmp_path, capsys):
    file = write_sweep(tmp_path, policies=["fifa"])
    assert main(["sweep", str(file), "--out", str(tmp_path / "out"), "--launch", "k8s"]) == 2
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "out").exists()


def test_the_templates_of_the_documentation_parse(tmp_path):
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", DOC, re.M)
    texts = [re.sub(r"^    ", "", block, flags=re.M) for block in blocks]
    scripts = [text for text in texts if text.lstrip().startswith("#!/bin/sh")]
    jobs = [text for text in texts if text.lstrip().startswith("apiVersion:")]
    assert len(scripts) == len(jobs) == 1
    checked_by_shell(scripts[0].lstrip(), tmp_path)
    assert scripts[0].strip() == slurm(SweepLaunch("sweep.yaml", "out", 16, 8)).strip()
    shown = SweepLaunch("sweep.yaml", "out", 16, 8, image="YOUR_IMAGE", claim="YOUR_CLAIM")
    assert yaml.safe_load(jobs[0]) == yaml.safe_load(kubernetes(shown))
