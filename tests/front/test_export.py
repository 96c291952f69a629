"""A policy as a file: exact round trip, and everything that must be refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise import cli
from equipoise.policies.record.export import (
    MAX_BYTES,
    ExportedPolicy,
    ExportError,
    digest_of,
    load_policy,
    write_policy,
)
from equipoise.policies.registry import make_policy

KEY = b"sixteen byte key"
SCENARIO = """
schema_version: 1
name: four equal nodes
cluster: {nodes: [{count: 4}]}
workload:
  models: {small: {sample_time: 1 ms, parameters: 1e6}}
  jobs: [{gpus: 4, model: small, steps: 50, global_batch: 32}]
policy: [s2]
"""


def exported(spec: str = "s1(threshold=0.2)+s2(mode=optimal)+s3+easy") -> ExportedPolicy:
    return ExportedPolicy(
        make_policy(spec),
        {"name": "generic", "digest": "ab" * 32},
        {"name": "a case", "digest": "cd" * 32},
        {"makespan_s": 12.5, "goodput_ratio": 1e-7, "seed": 3, "run": "x"},
    )


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    write_policy(exported(), path, KEY)
    return path


def changed(path: Path, **values: object) -> None:
    """Change keys of the file and make its digest right again."""
    data = json.loads(path.read_text())
    data |= values
    content = {k: v for k, v in data.items() if k not in ("digest", "signature")}
    path.write_text(json.dumps({**content, "digest": digest_of(content)}))


def refused(path: Path, key: bytes | None = None) -> str:
    with pytest.raises(ExportError) as caught:
        load_policy(path, key)
    text = str(caught.value)
    assert re.match(rf"{re.escape(str(path))}(:\d+:\d+)?: ", text)  # where that is to be said
    assert "\n" not in text
    return text


def test_loads_back_equal(written: Path) -> None:
    for key in (None, KEY):
        found = load_policy(written, key)
        assert found.policy.stages == exported().policy.stages
        assert (found.profile, found.scenario, found.promise) == (
            exported().profile,
            exported().scenario,
            exported().promise,
        )
        assert found.signed == (key is not None)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_changed_byte_is_found(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.yaml"
    write_policy(exported(), path)
    raw = bytearray(path.read_bytes())
    before = load_policy(path).content()
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(raw)
    try:
        found = load_policy(path)
    except ExportError:
        return
    assert found.content() == before  # a change of layout only, such as a blank


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 1200))
def test_a_torn_file_is_found(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.getbasetemp() / "torn.yaml"
    write_policy(exported(), path)
    raw = path.read_bytes()
    path.write_bytes(raw[: min(cut, len(raw) - 2)])
    refused(path)


def test_a_wrong_or_missing_signature_is_refused(written: Path) -> None:
    assert "does not match the key" in refused(written, b"another key here")
    changed(written, promise={"makespan_s": 1.0})
    assert "not signed" in refused(written, KEY)
    assert load_policy(written).promise == {"makespan_s": 1.0}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"format": 1}, "format 1"),
        ({"contract": 99}, "contract 99"),
        ({"contract": 0}, "contract 0"),
        ({"surprise": 1}, "unknown key 'surprise'"),
        ({"policy": [{"os.system": {}}]}, "not built in"),
        ({"policy": [{"s2": {"mode": "fast"}}]}, "not one of formula, optimal"),
        ({"policy": [{"s2": {"speed": 1}}]}, "unknown parameter 'speed'"),
        ({"policy": "s1"}, "needs a list of stages"),
        ({"profile": {"path": "x"}}, "name and digest only"),
        ({"promise": {"x": [1]}}, "numbers and texts"),
    ],
)
def test_wrong_content_is_refused(written: Path, values: dict[str, object], said: str) -> None:
    changed(written, **values)
    assert said in refused(written)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("!!python/object/apply:os.system ['true']", "not a policy file"),
        ("[" * 3000 + "]" * 3000, "deeply"),
        ('{"format": 2, "policy": ' + "[" * 30_000, "deeply"),
        ('{"format": NaN}', "format nan"),
        ('{"format": 1e999}', "format inf"),
        ("- 1", "not a policy file"),
        ("x" * (MAX_BYTES + 1), "larger than"),
        ('{"format": ' + "9" * 20_000 + "}", ""),
        ('{"format": "\\ud800"}', "surrogate"),
    ],
)
def test_hostile_files_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "hostile.yaml"
    path.write_text(text)
    assert said in refused(path)


def test_command_exports_and_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario, out, key = tmp_path / "s.yaml", tmp_path / "p.yaml", tmp_path / "key"
    scenario.write_text(SCENARIO)
    key.write_bytes(KEY)
    arguments = ["export", str(scenario), "--out", str(out), "--key-file", str(key), "--quiet"]
    assert cli.main(arguments) == cli.OK
    assert cli.main(["export", "--check", str(out), "--key-file", str(key)]) == cli.OK
    assert "signature checked" in capsys.readouterr().out
    found = load_policy(out, KEY)
    assert [stage.name for stage in found.policy.stages] == ["s2", "fifo"]
    assert found.promise["makespan_s"] > 0
    out.write_text(out.read_text().replace("0.5", "0.6", 1))
    assert cli.main(["export", "--check", str(out)]) == cli.WRONG_INPUT
    assert "damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("s1+s2", ""),
        ("sjf", "sjf: has no effect in a single live job; `equipoise schedule"),
        ("s2+s4", "s4: has no effect in a single live job; `equipoise schedule"),
    ],
)
def test_command_says_what_decides_about_a_queue_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], policy: str, said: str
) -> None:
    scenario = tmp_path / "s.yaml"
    scenario.write_text(SCENARIO)
    assert cli.main(["export", str(scenario), "--policy", policy, "--out", str(tmp_path / "p.yaml")]) == cli.OK
    notes = capsys.readouterr().err
    assert ("equipoise schedule" in notes) == bool(said)
    assert said in notes


@pytest.mark.parametrize(
    "arguments", [[], ["--check", "/nowhere/p.yaml"], ["--key-file", "/nowhere/key", "--check", "x"]]
)
def test_command_says_in_one_line_what_is_wrong(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["export", *arguments]) == cli.WRONG_INPUT
    assert capsys.readouterr().err.strip().splitlines()[-1].startswith("equipoise: ")


LAUNCH = Path(__file__).resolve().parents[2] / "docs" / "launch"


def test_the_kubernetes_file_is_yaml_whose_parts_find_each_other() -> None:
    service, job = yaml.safe_load_all((LAUNCH / "kubernetes.yaml").read_text())
    pod = job["spec"]["template"]
    (rule,) = job["spec"]["podFailurePolicy"]["rules"]
    assert rule["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]  # both are required
    assert service["spec"]["publishNotReadyAddresses"]
    assert service["spec"]["selector"] == pod["metadata"]["labels"]
    assert f"--rdzv-endpoint={pod['spec']['subdomain']}-0.train:29500" in pod["spec"]["containers"][0]["args"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@pytest.mark.parametrize("code", [0, 143])
def test_the_slurm_file_is_a_script_that_starts_every_rank(tmp_path: Path, code: int) -> None:
    """With stand-ins for Slurm's programs: torchrun on each node; queued again if it ended by a signal."""
    text = (LAUNCH / "slurm.sh").read_text()
    programs = {
        "scontrol": 'case "$1" in show) echo host-a; echo host-b;; *) echo "scontrol $*" >> "$CALLS";; esac',
        "srun": 'shift; "$@"',
        "python": 'echo "$* | $EQUIPOISE_POLICY" >> "$CALLS"; exit "$RANKS_END"',
    }
    for name, body in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "CALLS": str(tmp_path / "calls"),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "host-[a-b]",
        "SLURM_NNODES": "2",
        "SLURM_CPUS_ON_NODE": "9",
        "RANKS_END": str(code),
    }
    done = subprocess.run(
        ["bash"], input=text, text=True, env=environment, cwd=tmp_path, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (code, "")
    torchrun = "-m torch.distributed.run --nnodes=2 --nproc-per-node=8 --max-restarts=10 --rdzv-backend=c10d"
    assert (tmp_path / "calls").read_text().splitlines() == [
        f"{torchrun} --rdzv-id=7 --rdzv-endpoint=host-a:20007 train.py | policy.yaml",
        *["scontrol requeue 7"] * (code >= 128),
    ]
