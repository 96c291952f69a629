"""The calibration of this very machine, for real: every number here was measured in this test run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import equipoise
from equipoise.calibrate.check import ProfileDrift
from equipoise.calibrate.fit.robust import Estimate
from equipoise.calibrate.measure.collective_worker import SharedMemoryRank
from equipoise.calibrate.measure.collectives import WorkerProcesses, overlap_measures
from equipoise.calibrate.measure.host import HostBench, cores, last_level_cache_bytes
from equipoise.calibrate.measure.measure import MeasureMissingError, Series
from equipoise.calibrate.samples import read_samples
from equipoise.commands.hardware.calibrate import calibrate as command
from equipoise.sim.hardware.profile import HardwareProfile, Measured, load_profile, save_profile
from tests.calibrate import fakes as calibrate_fakes


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> tuple[HardwareProfile, dict[str, Any], Path]:
    """`equipoise calibrate --device cpu --quick`, with little time."""
    folder = tmp_path_factory.mktemp("cpu")
    arguments = ["calibrate", "--device", "cpu", "--quick", "--seconds", "1", "--format", "json"]
    done = calibrate_fakes.run([*arguments, "--out", "cpu.yaml"], cwd=folder)
    assert done.returncode == 0, done.stderr
    return load_profile(str(folder / "cpu.yaml")), json.loads(done.stdout), folder


@pytest.mark.long
def test_this_machine_gets_a_profile_with_intervals(session: Any) -> None:
    profile = session[0]
    (cpu,) = profile.accelerators.values()
    for number in (cpu.flop_per_s["fp32"], cpu.hbm_bytes_per_s):
        assert number.n > 0
        assert 0 < number.low <= number.value <= number.high
    assert 1e8 < cpu.hbm_bytes_per_s.value < 1e13
    assert 1e8 < cpu.flop_per_s["fp32"].value < 1e14
    assert cpu.memory_bytes.value == profile.conditions["memory_bytes"]
    assert profile.conditions["cores"] == cores()
    assert cpu.efficiency, "efficiency by size"
    assert cpu.idle_w is None, "a processor's power is not measured, and never made up"


@pytest.mark.long
def test_its_processes_exchanged_messages_for_real(session: Any) -> None:
    profile, report, _ = session
    fabric = profile.fabric("intra", "all_reduce", next(iter(profile.accelerators)))
    assert fabric is not None
    assert fabric.alpha_s.value > 0
    assert "gloo" in fabric.alpha_s.source or "shared memory" in fabric.alpha_s.source
    line = next(fit for fit in report["fits"] if fit["name"].startswith("all_reduce"))
    assert line["held_out_error"] is not None


@pytest.mark.long
def test_a_training_step_not_used_in_the_fit_is_predicted_with_error_and_interval(session: Any) -> None:
    pytest.importorskip("torch", reason="steps need PyTorch")
    predictions = session[1]["predictions"]
    assert predictions
    for p in predictions:
        assert p["predicted_low_s"] <= p["predicted_s"] <= p["predicted_high_s"]
        assert p["measured_low_s"] <= p["measured_s"] <= p["measured_high_s"]
        assert p["error"] == pytest.approx(p["predicted_s"] / p["measured_s"] - 1.0)
    assert {p["batch"] for p in predictions} == {64}
    assert {step.workload for step in session[0].steps} == {p["workload"] for p in predictions}


@pytest.mark.long
def test_a_scenario_runs_on_the_fresh_profile(session: Any) -> None:
    pytest.importorskip("torch", reason="steps need PyTorch")
    profile, _, folder = session
    (name,) = profile.accelerators
    workload = profile.steps[0].workload
    (folder / "case.yaml").write_text(
        f"""
schema_version: 1
name: fresh
cluster:
  hardware: cpu.yaml
  nodes: [{{count: 1, gpus: 2, accelerator: {name}}}]
workload:
  models: {{net: {{step: {workload}, precision: fp32, parameters: 1e5}}}}
  jobs: [{{gpus: 2, model: net, steps: 10, global_batch: 16}}]
policy: [fifo]
"""
    )
    found = equipoise.run(str(folder / "case.yaml")).summary()["makespan_s"]
    step = profile.accelerator(name).step(workload, "fp32")
    assert found >= 10 * (step.alpha_s.value + 8 * step.beta_s.value)


@pytest.mark.long
def test_the_raw_samples_give_the_same_profile_again(session: Any) -> None:
    profile, report, folder = session
    arguments = ["calibrate", "--from", "cpu.samples.jsonl", "--out", "again.yaml", "--format", "json"]
    done = calibrate_fakes.run(arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    again = load_profile(str(folder / "again.yaml"))
    assert again.model_copy(update={"name": profile.name}) == profile
    assert json.loads(done.stdout)["fits"] == report["fits"]


@pytest.mark.long
def test_samples_of_another_machine_are_not_mixed_in(session: Any) -> None:
    folder = session[2]
    lines = (folder / "cpu.samples.jsonl").read_text().splitlines(keepends=True)
    header = json.loads(lines[0])
    header["conditions"]["device"] = "another"
    (folder / "other.jsonl").write_text(json.dumps(header) + "\n" + "".join(lines[1:]))
    arguments = ["calibrate", "--from", "cpu.samples.jsonl", "--from", "other.jsonl", "--out", "x.yaml"]
    done = calibrate_fakes.run(arguments, cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert "different conditions are not mixed: device:" in done.stderr
    assert not (folder / "x.yaml").exists()


def changed(number: Measured, factor: float, spread: float) -> Measured:
    value = number.value * factor
    return number.model_copy(update={"value": value, "low": value / spread, "high": value * spread})


@pytest.mark.long
def test_check_measures_three_numbers_again_and_reports_drift(session: Any) -> None:
    """A million times the bandwidth has drifted; within a factor of a thousand nothing has."""
    profile, _, folder = session
    figures = {name: changed(number, 1.0, 1e3) for name, number in profile.figures.items()}
    figures["copy_bytes_per_s"] = changed(profile.figures["copy_bytes_per_s"], 1e6, 1.01)
    save_profile(profile.model_copy(update={"figures": figures}), folder / "changed.yaml")
    done = calibrate_fakes.run(["calibrate", "--check", "changed.yaml", "--format", "json"], cwd=folder)
    assert done.returncode == 5, done.stderr
    found = json.loads(done.stdout)["figures"]
    assert [f["name"].split("_")[0] for f in found] == ["copy", "gemm", "preprocess"]
    assert [f["beyond"] for f in found] == [True, False, False]
    for f in found:
        assert f["now_low"] <= f["now"] <= f["now_high"]


@pytest.mark.long
def test_check_without_drift_is_code_0(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    within = ProfileDrift("copy_bytes_per_s", Estimate(2.0, 1.0, 3.0, 9), Estimate(2.2, 2.1, 2.3, 9))
    monkeypatch.setattr("equipoise.calibrate.check.check", lambda profile, progress: ([within], ["driver: 1 and 2"]))
    done = CliRunner().invoke(command, ["--check", str(session[2] / "cpu.yaml")])
    assert done.exit_code == 0
    assert "+10.0%" in done.stdout
    assert "condition changed: driver: 1 and 2" in done.stdout


@pytest.mark.long
def test_check_refuses_a_profile_of_another_machine(session: Any) -> None:
    profile, _, folder = session
    other = profile.model_copy(update={"conditions": {**profile.conditions, "device": "another"}})
    save_profile(other, folder / "foreign.yaml")
    done = calibrate_fakes.run(["calibrate", "--check", "foreign.yaml"], cwd=folder)
    assert done.returncode == 2
    assert "is of another device: device: 'another' and" in done.stderr


@pytest.mark.long
def test_an_interrupted_session_keeps_its_samples(tmp_path: Path) -> None:
    arguments = ["calibrate", "--device", "cpu", "--quick", "--out", "p.yaml", "--only", "gemm"]
    whole = [sys.executable, "-c", calibrate_fakes.COMMAND_LINE, *arguments, "--seconds", "60"]
    env = calibrate_fakes.environment()
    process = subprocess.Popen(whole, env=env, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    samples = tmp_path / "p.samples.jsonl"
    while not (samples.exists() and samples.read_text().count("\n") > 2):
        assert process.poll() is None, "it ended before it was interrupted"
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=60)
    assert process.returncode == 130
    kept = len(read_samples(samples).samples)
    assert kept >= 2
    assert f"{kept} samples kept in p.samples.jsonl; the same command continues" in message


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--out", "p.yaml", "--samples", "none/s.jsonl"], "--samples none/s.jsonl: no such folder"),
        (["--out", "/proc/p.yaml"], "--out /proc/p.yaml: "),
        (["--check", "catalogue", "--quick"], "--quick applies to measuring only"),
        (["--from", __file__, "--out", "p.yaml", "--only", "gemm"], "--only applies to measuring only"),
        (["--from", __file__, "--out", "p.yaml"], "test_cpu.py:1: not JSON"),
        (["--check", "catalogue"], "profile 'catalogue' was not measured but catalogue; nothing to check"),
    ],
)
def test_wrong_input_is_one_line_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], line: str
) -> None:
    def never(*ignored: object) -> None:
        raise AssertionError("something was measured")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("equipoise.commands.hardware.calibrate._measure", never)
    if "/proc/p.yaml" in arguments:
        monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write everywhere
    done = CliRunner().invoke(command, ["--device", "cpu", *arguments])
    assert line in done.output
    assert not isinstance(done.exception, AssertionError)
    assert done.exit_code != 0
    assert list(tmp_path.iterdir()) == []


# -- the parts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_stand_in_collective_sums_over_ranks(tmp_path: Path, ranks: int) -> None:
    sums: dict[int, list[float]] = {}

    def work(rank: int) -> None:
        member = SharedMemoryRank(rank, ranks, tmp_path / "meeting")
        once = member.prepared("all_reduce", 4 * ranks * 5)
        member._slots[rank][: ranks * 5] = np.arange(ranks * 5) * 10.0**rank
        once()
        sums[rank] = member._slots[rank][: ranks * 5].tolist()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    wanted = [k * sum(10.0**r for r in range(ranks)) for k in range(ranks * 5)]
    assert sums == {rank: pytest.approx(wanted) for rank in range(ranks)}


def test_worker_processes_measure_together_and_end() -> None:
    group = WorkerProcesses("shared memory", 2)
    try:
        times = group.times({"collective": "all_reduce", "size_bytes": 65536}, 0.01)
        processes = list(group._processes)
    finally:
        group.close()
    assert len(times) >= 8
    assert min(times) > 0
    assert [p.poll() for p in processes] == [0, 0]


@pytest.mark.long
def test_a_worker_that_dies_is_a_reason_not_a_crash() -> None:
    group = WorkerProcesses("no such backend", 1)
    with pytest.raises(MeasureMissingError, match="no such backend between 1 processes: "):
        group.times({"collective": "all_reduce", "size_bytes": 4096}, 0.01)
    group.close()


@pytest.mark.long
def test_a_step_its_exchange_and_both_are_timed_in_turn() -> None:
    """Every rank's step with its exchange is at least about as long as the step alone."""
    pytest.importorskip("torch", reason="steps with their exchange need PyTorch")
    group = WorkerProcesses("gloo", 2)
    try:
        first, *_ = overlap_measures([group], quick=True)
        found = first.run(0.1)
    finally:
        group.close()
    assert isinstance(found, Series)
    step_s, exchange_s, together_s = (np.median(found.columns[k]) for k in ("step_s", "exchange_s", "together_s"))
    assert first.parameters["workload"] == "mlp"
    assert len(found.columns["step_s"]) >= 8
    assert min(step_s, exchange_s) > 0
    assert together_s > 0.5 * max(step_s, exchange_s)


def test_the_host_s_measurements_move_what_they_say() -> None:
    bench = HostBench(quick=True)
    bench.array_bytes = 2**20
    try:
        a, b, out = bench.arrays
        kinds = {m.kind: m for m in bench.memory()}
        kinds["add"].run(0.0)
        assert np.array_equal(out, a + b)
        kinds["copy"].run(0.0)
        assert np.array_equal(out, a)
        assert {m.kind: m.parameters["bytes"] for m in bench.memory()} == {
            "copy": 2 * 2**20,
            "read": 2**20,
            "add": 3 * 2**20,
        }
        rates = [m.run(0.0) for m in bench.sharing()]
        assert all(min(values) > 0 for values in rates)
    finally:
        bench.close()
    assert last_level_cache_bytes() >= 2**18
