"""The validation that a GPU machine runs: driven from end to end on fake libraries, its judgements checked.

Whatever these tests show says nothing of a real GPU: the fakes answer as written.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest

from equipoise.calibrate.device import nvrtc
from equipoise.calibrate.device.libraries import LibraryMissingError
from equipoise.calibrate.measure.measure import MeasureMissingError
from equipoise.calibrate.profile import build_profile
from equipoise.calibrate.samples import Sample, SampleSet, read_samples
from equipoise.sim.hardware.profile import Accelerator, HardwareProfile, Measured, StepTime, load_profile
from tests.bench import gpu_validation
from tests.bench.gpu import activity as gpu_activity
from tests.bench.gpu import ranks as gpu_ranks
from tests.bench.gpu import rows as gpu_rows
from tests.bench.gpu import shares as gpu_shares
from tests.bench.gpu import training as gpu_training
from tests.bench.gpu.rows import Row
from tests.calibrate import fakes as calibrate_fakes

# The fake's counters follow this variable; a real GPU needs nobody to tell it what it is doing.
WITH_LOADS = """
import os, sys
from contextlib import contextmanager
from tests.bench import gpu_validation
from tests.bench.gpu import activity as gpu_activity

def telling(load, text):
    @contextmanager
    def around(device):
        with load(device) as queue:
            os.environ["FAKE_NVML_LOAD"] = text
            try:
                yield queue
            finally:
                os.environ["FAKE_NVML_LOAD"] = "idle"
    return around

os.environ["FAKE_NVML_LOAD"] = "idle"
gpu_activity.product_load = telling(gpu_activity.product_load, "gemm")
gpu_activity.copy_load = telling(gpu_activity.copy_load, "copy")
sys.exit(gpu_validation.main(sys.argv[1:]))
"""
KINDS = "copy,library_copy,fma,tensor,share,interference"


def validate(out: Path, *libraries: Path, sections: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    arguments = ["--out", str(out), "--quick", "--scale", "0.01", "--only", KINDS]
    arguments += ["--sections", sections] if sections else []
    env = calibrate_fakes.environment(*libraries, **variables)
    command = [sys.executable, "-c", WITH_LOADS, *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=240)


def rows_in(out: Path) -> list[Row]:
    found = gpu_validation.Session(out, 0.0, "cuda", 1.0, None, True)
    found.go_on()
    return gpu_validation.all_rows(found)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Row], Path, Any]:
    """The whole command on the fakes, with an MPS daemon that is one in name only."""
    try:
        nvrtc.version()
    except LibraryMissingError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("validation")
    control = folder / gpu_shares.CONTROL
    control.write_text("#!/bin/sh\nexit 0\n")
    control.chmod(control.stat().st_mode | stat.S_IXUSR)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    out = folder / "out"
    done = validate(out, calibrate_fakes.cuda(), calibrate_fakes.nvml(), FAKE_NVML="hopper", FAKE_CUDA="", PATH=path)
    assert (out / "results.json").exists(), done.stderr
    rows = rows_in(out)
    return {row.what: row for row in rows}, out, done


@pytest.mark.long
def test_every_section_runs_and_each_gap_is_one_line(session: Any) -> None:
    rows, _, done = session
    assert done.returncode == 3, done.stderr
    assert rows["doctor"].found.startswith("1, driver 580.65.06")
    assert rows["counters that answer"].found == "21 of 21"
    missing = {row.what: row.found for row in rows.values() if row.verdict == "not run"}
    assert missing["adapter"] in ("PyTorch shows no CUDA device", "No module named 'torch'") or missing[
        "adapter"
    ].startswith("ModuleNotFoundError")
    assert missing["training on shares of the GPU"].startswith("a training process ended: ")
    assert missing["products of cuBLASLt against PyTorch's"] == "needs PyTorch for CUDA"
    assert not any("\n" in row.found or "Traceback" in row.found for row in rows.values())
    for section in gpu_validation.SECTIONS:
        assert f"{section.title} (" in done.stderr


@pytest.mark.long
def test_counters_are_held_against_what_each_load_must_do(session: Any) -> None:
    rows = session[0]
    for load, counter in (("a product", "PROF_PIPE_TENSOR_ACTIVE"), ("a copy", "PROF_DRAM_ACTIVE")):
        assert rows[f"{counter} during {load}"].verdict == "holds"
    assert rows["PROF_SM_ACTIVE during nothing"].found == "0.000"


@pytest.mark.long
def test_two_calibrations_are_compared_and_second_methods_too(session: Any) -> None:
    rows = session[0]
    copy = rows["copy kernel against the driver's copy, bytes/s"]
    assert copy.verdict == "holds"
    assert copy.found.startswith("+0.")
    agreement = rows["two calibrations agree within their intervals"]
    assert " numbers" in agreement.found
    assert rows["copy, memory, share of the data sheet"].wanted == "at most 1.02"
    assert any(what.startswith("compute-bound kernel on 50.0% of the SMs") for what in rows)


@pytest.mark.long
def test_what_is_kept_is_small_and_gives_the_same_profile(session: Any) -> None:
    out = session[1]
    names = sorted(path.name for path in out.iterdir())
    assert len(names) <= 8, "some ways home take eight files"
    samples = read_samples(out / "samples.jsonl.gz")
    assert max(len(s.values) for s in samples.samples) <= gpu_validation.KEPT_VALUES
    assert (out / "samples.jsonl.gz").stat().st_size < 200_000
    assert build_profile(samples, "profile")[0] == load_profile(str(out / "profile.yaml"))
    assert "| what | wanted | found | verdict |" in (out / "rows.md").read_text()


@pytest.mark.long
def test_without_a_gpu_every_line_says_what_is_missing(tmp_path: Path) -> None:
    calibrate_fakes.needs_no("libcuda.so.1")
    done = validate(tmp_path, sections="activity,first,second")
    assert done.returncode == 3
    rows = rows_in(tmp_path)
    reasons = {row.what: row.found for row in rows}
    assert reasons["counters under known loads"] == "no NVIDIA driver here: libcuda.so.1 was not found"
    assert "libcuda.so.1 was not found" in reasons["first calibration"]
    assert "libcuda.so.1 was not found" in reasons["second calibration"]
    assert "no calibration;" in done.stdout


# -- judgements -------------------------------------------------------------------------------------------


def number(value: float, spread: float = 1.01) -> Measured:
    return Measured(value=value, low=value / spread, high=value * spread, n=9, kind="measured")


def profile(device: str = "NVIDIA H200", beta: float = 1e-3, **figures: float) -> HardwareProfile:
    gpu = Accelerator(flop_per_s={"bf16": number(7e14)}, hbm_bytes_per_s=number(4e12), memory_bytes=number(1.4e11))
    step = StepTime(workload="mlp", accelerator="g", precision="bf16", alpha_s=number(1e-3), beta_s=number(beta))
    return HardwareProfile(
        name="p",
        kind="measured",
        conditions={"device": device, "driver": "1"},
        accelerators={"g": gpu},
        steps=(step,),
        figures={name: number(value) for name, value in figures.items()},
    )


def test_a_second_method_that_disagrees_fails() -> None:
    found = profile(
        copy_bytes_per_s=4e12,
        library_copy_bytes_per_s=3.7e12,
        gemm_cublaslt_bf16_8192_flop_per_s=7.0e14,
        gemm_torch_bf16_8192_flop_per_s=6.8e14,
        gemm_cublaslt_bf16_1024_flop_per_s=7.0e14,
        gemm_torch_bf16_1024_flop_per_s=2.0e14,
    )
    rows = gpu_rows.second_method_rows(found)
    assert [row.verdict for row in rows] == ["FAILS", "holds", "stated"]
    assert rows[0].found.startswith("+8.1%")
    assert [row.verdict for row in gpu_rows.second_method_rows(profile())] == ["not run", "not run"]


def test_more_than_the_data_sheet_allows_fails() -> None:
    rows = {r.what: r for r in gpu_rows.physical_rows(profile(copy_bytes_per_s=6e12, tensor_bf16_flop_per_s=6e14))}
    assert rows["copy, memory, share of the data sheet"].verdict == "FAILS"
    assert rows["copy, memory, share of the data sheet"].found == "125.0%"
    assert rows["tensor bf16, share of the data sheet"].found == "60.6%"
    assert rows["best product bf16, share of the data sheet"].found == "70.7%"
    (unknown,) = gpu_rows.physical_rows(profile("NVIDIA Unheard 9"))
    assert unknown.found == "the catalogue has no NVIDIA Unheard 9"


@pytest.mark.parametrize(
    ("device", "entry"),
    [
        ("NVIDIA H200", "h200_sxm"),
        ("NVIDIA H100 80GB HBM3", "h100_sxm"),
        ("NVIDIA H100 PCIe", "h100_pcie"),
        ("NVIDIA A100-SXM4-80GB", "a100_sxm_80gb"),
        ("NVIDIA A10", "a10"),
        ("Tesla T4", "t4"),
    ],
)
def test_devices_are_found_in_the_catalogue(device: str, entry: str) -> None:
    assert gpu_rows.data_sheet(device) == (entry, load_profile("catalogue").accelerators[entry])


def test_a_rate_is_compared_with_that_of_the_pipes_and_the_clock_it_has() -> None:
    found = profile(fma_fp64_flop_per_s=31.4e12, tensor_fp64_flop_per_s=62e12, tensor_bf16_flop_per_s=1.05e15)
    rows = {r.what: r for r in gpu_rows.physical_rows(found)}
    assert rows["fma fp64, share of the data sheet"].found == "93.7%"
    assert rows["tensor fp64, share of the data sheet"].found == "92.5%"
    assert rows["tensor bf16, share of the data sheet"].verdict == "FAILS"
    boosted = found.model_copy(update={"conditions": {**found.conditions, "max_sm_clock_hz": 1.98e9}})
    rows = {r.what: r for r in gpu_rows.physical_rows(boosted)}
    bf16 = rows["tensor bf16, share of the data sheet"]
    assert (bf16.wanted, bf16.verdict) == ("at most 1.10 (the sheet's clock is lower)", "holds")
    assert rows["tensor fp64, share of the data sheet"].wanted == "at most 1.02"


def test_calibrations_whose_intervals_do_not_meet_fail_and_are_named() -> None:
    figures = {f"x{k}_s": 1.0 for k in range(4)}
    good = gpu_rows.agreement_row(profile(**figures), profile(**figures))
    assert (good.verdict, good.found) == ("holds", "5 of 5 numbers")
    other = profile(beta=2e-3, **(figures | {"x3_s": 1.2}))
    bad = gpu_rows.agreement_row(profile(**figures), other)
    assert (bad.verdict, bad.found) == ("FAILS", "3 of 5 numbers; apart: x3_s, mlp bf16 per sample")


def prediction(workload: str, precision: str, error: float) -> dict[str, Any]:
    return {
        "workload": workload,
        "precision": precision,
        "error": error,
        "predicted_low_s": 1.0 + error - 0.02,
        "predicted_high_s": 1.0 + error + 0.02,
        "measured_low_s": 0.99,
        "measured_high_s": 1.01,
    }


def test_steps_are_judged_by_precision() -> None:
    found = [prediction(w, "fp32", 0.01) for w in ("mlp", "conv")]
    found += [prediction("mlp", "bf16", e) for e in (0.02, -0.2, 0.3)]
    single, other = gpu_rows.step_rows(found)
    assert (single.verdict, single.found) == ("holds", "1.0% median of 2, intervals meet in 2")
    assert other.what == "step of largest batch from smaller batches, bf16"
    assert (other.verdict, other.found) == ("FAILS", "20.0% median of 3, intervals meet in 1")
    assert gpu_rows.step_rows([])[0].verdict == "not run"


def test_a_counter_that_does_not_answer_is_no_failure() -> None:
    names = {f"DCGM_FI_{e.counter}": 0.5 for e in gpu_activity.EXPECTED}
    readings = {load: dict(names) for load in ("product", "copy", "idle")}
    readings["copy"]["DCGM_FI_PROF_DRAM_ACTIVE"] = None  # type: ignore[assignment]
    found = {"readings": readings, "answers": {}, "missing": {"DCGM_FI_PROF_DRAM_ACTIVE": "Insufficient Permissions"}}
    rows = {row.what: row for row in gpu_rows.activity_rows(found)}
    absent = rows["PROF_DRAM_ACTIVE during a copy"]
    assert (absent.verdict, absent.found) == ("not run", "Insufficient Permissions")
    assert rows["PROF_PIPE_TENSOR_ACTIVE during a product"].verdict == "FAILS"
    assert rows["counters that answer"].found == "0 of 1; not: DCGM_FI_PROF_DRAM_ACTIVE"


def test_each_share_is_predicted_from_the_others() -> None:
    shares = (0.25, 0.5, 0.75, 1.0)
    samples = SampleSet(
        {},
        {},
        tuple(Sample("share", {"kernel": "compute", "share": f}, ((f + 2.0) / (3.0 * f),) * 3, "s", 0) for f in shares),
    )
    found = gpu_shares.held_out_shares(samples)["compute"]
    assert [row["share"] for row in found] == [0.5, 0.75]
    for row in found:
        assert row["predicted_s"] == pytest.approx(row["measured_s"], rel=1e-6)
    assert [row.found for row in gpu_rows.share_rows(samples)] == ["+0.0%", "+0.0%"] or all(
        row.found in ("+0.0%", "-0.0%") for row in gpu_rows.share_rows(samples)
    )
    assert gpu_rows.share_rows(SampleSet({}, {}, ()))[0].verdict == "not run"


def test_exit_codes_and_the_page() -> None:
    rows = [Row("a", "-", "1", "holds"), Row("b", "-", "1", "stated")]
    assert gpu_validation.exit_code(rows) == 0
    assert gpu_validation.exit_code([*rows, gpu_rows.not_run("c", "no\nway")]) == 3
    assert gpu_validation.exit_code([*rows, Row("d", "-", "1", "FAILS"), gpu_rows.not_run("c", "x")]) == 5
    assert gpu_rows.not_run("c", "no\n way").found == "no way"


def test_the_table_goes_between_the_marks_of_its_gpu(tmp_path: Path) -> None:
    text = gpu_validation.DOCS.read_text()
    page = tmp_path / "page.md"
    table = gpu_rows.as_markdown([Row("what", "-", "found", "stated")], "heading")
    for device in ("NVIDIA H200", "NVIDIA H100 80GB HBM3"):
        begin, end = gpu_validation.marks(device)
        assert text.count(begin) == text.count(end) == 1
        page.write_text(text)
        gpu_validation.put_into_docs(table, device, page)
        gpu_validation.put_into_docs(table, device, page)
        new = page.read_text()
        assert new.count("| what | - | found | stated |") == 1
        assert new.partition(begin)[0] == text.partition(begin)[0]
        assert new.partition(end)[2] == text.partition(end)[2]
    with pytest.raises(ValueError, match="has no marks"):
        gpu_validation.put_into_docs(table, "another", page)


# -- the parts that need PyTorch, on a CPU ---------------------------------------------------------------


def test_a_training_is_timed_for_as_long_as_it_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr("sys.stdin", ["0.05\n", "0.01\n"])
    for kind in gpu_training.KINDS:
        gpu_training.main(["serve", "--device", "cpu", "--kind", kind])
        ready, *results = capsys.readouterr().out.splitlines()
        assert ready == "ready"
        steps = [json.loads(line)["steps_s"] for line in results]
        assert len(steps) == 2
        assert all(len(times) >= 5 and min(times) > 0.0 for times in steps)


def test_the_adapter_is_compared_with_plain_training(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    gpu_training.main(["adapter", "--device", "cpu", "--seconds", "0.05"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(found["tiny"]) == set(gpu_training.MODES)
    assert {len(times) for times in found["tiny"].values()} == {len(found["tiny"]["plain"])}
    # Ratios 1.01, 1.004, 1.002 to the block beside: their median is above observe's 0.3 %, within act's 1 %.
    by_mode = {"plain": [1.0, 2.0, 1.0], "observe": [1.01, 2.008, 1.002], "act": [1.01, 2.008, 1.002]}
    observe, act = gpu_rows.adapter_rows({"host 40 ms": by_mode})
    assert (observe.wanted, observe.verdict, act.wanted, act.verdict) == (
        "at most 0.3%",
        "FAILS",
        "at most 1.0%",
        "holds",
    )
    assert [row.verdict for row in gpu_rows.adapter_rows({"GPU 150 ms": by_mode})] == ["FAILS", "FAILS"]


def test_popular_models_are_compared_with_what_was_predicted_before(tmp_path: Path) -> None:
    header = "gpu,model,batch,length,checkpointing,step_s,error,peak_bytes,reserved_bytes\n"
    (tmp_path / "predicted.csv").write_text(header + "h100,m,2,16,0,0.109,0.2,95,100\n")
    step = {"gpu": "NVIDIA H100", "model": "m", "batch": "2", "length": "16"}
    step |= {"step_s": "0.1", "peak_allocated_bytes": "100"}
    found = {"steps": [step, step | {"gpu": "NVIDIA A100"}, step | {"step_s": "0.09"}], "operations": 3}
    all_of, near, off = gpu_rows.popular_rows(found, tmp_path / "predicted.csv")
    assert all_of.found == "3 steps, 3 operations"
    assert (near.found, near.verdict) == ("+9.0% of 100.0 ms, peak -5.0%", "holds")
    assert off.verdict == "FAILS"  # 0.109 / 0.09 = 1.21


class FakeWorker:
    """A training whose speed on a part f is (1 + k) f / (f + k), a fifth slower beside another one."""

    asked: ClassVar[list[FakeWorker]] = []
    closed = 0

    def __init__(self, environment: dict[str, str], percentage: int, kind: str, device: str) -> None:
        f, k, whole_s = percentage / 100.0, *{"products": (0.5, 0.01), "memory": (0.1, 0.004)}[kind]
        self.step_s = whole_s * (f + k) / ((1.0 + k) * f)

    def ready(self) -> None:
        """At once."""

    def ask(self, seconds: float) -> None:
        self.asked.append(self)

    def answer(self) -> list[float]:
        slower = 1.2 if len(self.asked) > 1 else 1.0
        if self is self.asked[-1]:
            self.asked.clear()
        return [slower * self.step_s] * 3

    def close(self) -> None:
        FakeWorker.closed += 1


def test_training_on_shares_and_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_shares, "Worker", FakeWorker)
    found = gpu_shares.measure_training({}, "cpu", 0.1)
    for curve, kappa in zip(gpu_shares.curves(found["alone"]).values(), (0.5, 0.1), strict=True):
        assert curve["kappa"] == pytest.approx(kappa, rel=1e-6)
        assert curve["predicted_s"] == pytest.approx(curve["measured_s"], rel=1e-6)
    rows = {row.what: row.found for row in gpu_rows.training_share_rows(found)}
    equal = rows["two trainings beside each other 50/50 % (products / memory)"]
    assert equal == "1.389 of a GPU each by itself (0.625 + 0.764)"
    assert f"two trainings beside each other, as S3 gives them, {found['s3']} % (products / memory)" in rows
    products, memory = (int(part) for part in found["s3"].split("/"))
    assert products > memory  # which is nearly as fast on less
    assert 99 <= products + memory <= 100  # whole percents


def test_a_training_process_that_ends_is_one_line(tmp_path: Path) -> None:
    worker = gpu_shares.Worker({"PATH": os.environ["PATH"]}, 50, "nothing", "cpu")
    try:
        with pytest.raises(MeasureMissingError, match=r"a training process ended: .*invalid choice: 'nothing'"):
            worker.ready()
    finally:
        worker.close()


def test_the_stages_are_compared_with_the_mean_of_equal_work() -> None:
    def ran(policy: str, round_s: float) -> dict[str, Any]:
        return {"policy": policy, "batch": 10, "times_s": [9.0] * gpu_ranks.REACTION + [round_s] * 5}

    runs = [ran("plain", 0.5), ran("s1+s2", 0.4), ran("plain", 0.5)]
    (row,) = gpu_rows.rank_rows({"percentages": (60, 40), "ranks": [runs, runs]})
    assert row.what == "two ranks on 60 % and 40 % of one GPU, s1+s2 against equal work"
    assert row.found == "1.250 times the samples/s"


def test_sections_that_a_folder_has_are_kept(tmp_path: Path) -> None:
    one = gpu_validation.Session(tmp_path, time.monotonic() - 1.0, "cuda", 1.0, None, True)
    one.results["adapter"] = {"host 40 ms": {"plain": [1.0], "act": [1.001]}}
    gpu_validation.validate(one, frozenset({"doctor"}))
    two = gpu_validation.Session(tmp_path, time.monotonic() - 1.0, "cuda", 1.0, None, True)
    two.go_on()
    gpu_validation.validate(two)
    rows = {row.what: row for row in gpu_validation.all_rows(two)}
    assert rows["adapter, one rank, host 40 ms, act"].verdict == "holds"
    for late in ("doctor", "two ranks on one GPU", "large transformer"):
        assert rows[late].verdict == "not run"
    assert rows["first calibration"].found.startswith("no time is left for ")


def test_without_an_mps_daemon_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MeasureMissingError, match="nvidia-cuda-mps-control is not on this machine"), gpu_shares.mps():
        pass
    control = tmp_path / gpu_shares.CONTROL
    control.write_text("#!/bin/sh\necho 'no rights' >&2\nexit 1\n")
    control.chmod(0o755)
    with pytest.raises(MeasureMissingError, match="does not start: no rights"), gpu_shares.mps():
        pass


def test_an_mps_daemon_that_keeps_what_it_inherits_does_not_hold_the_validation_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon holds its standard output open for as long as it runs; through a pipe that would never end."""
    control = tmp_path / gpu_shares.CONTROL
    control.write_text(
        '#!/bin/sh\nif [ "$1" = -d ]; then sleep 60 & echo $! >"$CUDA_MPS_LOG_DIRECTORY/pid"; exit 0; fi\n'
        'kill "$(cat "$CUDA_MPS_LOG_DIRECTORY/pid")"\n'
    )
    control.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with gpu_shares.mps() as environment:
        began = (Path(environment["CUDA_MPS_PIPE_DIRECTORY"]) / "pid").read_text()
    assert int(began) > 0
