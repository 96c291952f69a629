"""The whole GPU path against a fake driver whose speeds are known (tests/calibrate/fake_cuda.cpp).

What is measured must come out as what the fake takes, through compiler, launches, events, green contexts,
library and fits. That the same holds on a real GPU is not shown here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from equipoise.calibrate.device import nvrtc
from equipoise.calibrate.device.libraries import LibraryMissingError
from equipoise.calibrate.samples import read_samples
from equipoise.sim.hardware.profile import HardwareProfile, load_profile
from tests.calibrate import fakes as calibrate_fakes

# What tests/calibrate/fake_cuda.cpp takes.
BYTES_PER_S = {"copy": 400e9, "read": 420e9, "triad": 390e9, "library_copy": 398e9}
FLOP_PER_S = {"fma_fp32": 40e12, "tensor_bf16": 500e12, "tensor_fp8": 1000e12, "tensor_fp64": 30e12}
GEMM_FLOP_PER_S, TO_DEVICE, TO_HOST, PEER = 700e12, 20e9, 18e9, 90e9
KAPPA_COMPUTE, KAPPA_MEMORY = 5.0, 0.3

KINDS = "copy,read,triad,library_copy,fma,tensor,launch_pipelined,transfer,gemm,share,interference"


@pytest.fixture(scope="module", autouse=True)
def _needs_the_compiler() -> None:
    try:
        nvrtc.version()
    except LibraryMissingError as error:
        pytest.skip(str(error))


def calibrate(*options: str, machine: str = "", out: Path) -> Any:
    arguments = ["calibrate", "--device", "cuda", "--quick", "--format", "json", "--out", str(out), *options]
    libraries = (calibrate_fakes.cuda(), calibrate_fakes.nvml())
    own_clock = str(libraries[0] / "libcuda.so.1")
    return calibrate_fakes.run(arguments, *libraries, FAKE_CUDA=machine, FAKE_NVML="two", LD_PRELOAD=own_clock)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> tuple[HardwareProfile, dict[str, Any], Path]:
    """One calibration of the fake; its profile, report and folder."""
    folder = tmp_path_factory.mktemp("cuda")
    out = folder / "fake.yaml"
    done = calibrate("--seconds", "2", "--only", f"{KINDS},peer", machine="two", out=out)
    assert done.returncode == 0, done.stderr
    return load_profile(str(out)), json.loads(done.stdout), folder


def test_memory_and_arithmetic_come_out_as_the_device_has_them(session: Any) -> None:
    figures = session[0].figures
    for kind, truth in BYTES_PER_S.items():
        assert figures[f"{kind}_bytes_per_s"].value == pytest.approx(truth, rel=0.02), kind
    for name, truth in FLOP_PER_S.items():
        assert figures[f"{name}_flop_per_s"].value == pytest.approx(truth, rel=0.05), name
    accelerator = session[0].accelerators["nvidia_h100_80gb_hbm3"]
    assert accelerator.flop_per_s["bf16"].value == pytest.approx(GEMM_FLOP_PER_S, rel=0.02)
    assert accelerator.hbm_bytes_per_s.value == pytest.approx(BYTES_PER_S["copy"], rel=0.02)
    assert accelerator.memory_bytes.value == 512 * 2**20


def test_the_library_s_fastest_algorithm_is_found(session: Any) -> None:
    figures = session[0].figures
    assert figures["gemm_cublaslt_bf16_8192_flop_per_s"].value == pytest.approx(GEMM_FLOP_PER_S, rel=0.02)


def test_transfers_come_out_as_the_device_has_them(session: Any) -> None:
    figures = session[0].figures
    assert figures["transfer_to_device_pinned_bytes_per_s"].value == pytest.approx(TO_DEVICE, rel=0.1)
    assert figures["transfer_to_host_pinned_bytes_per_s"].value == pytest.approx(TO_HOST, rel=0.1)
    link = session[0].accelerators["nvidia_h100_80gb_hbm3"].link_bytes_per_s
    assert link.value == pytest.approx(PEER, rel=0.15)


def test_share_curves_come_out_as_the_device_has_them(session: Any) -> None:
    accelerator = session[0].accelerators["nvidia_h100_80gb_hbm3"]
    assert accelerator.share_kappa.value == pytest.approx(KAPPA_COMPUTE, rel=0.35)
    assert session[0].figures["share_kappa_memory_1"].value == pytest.approx(KAPPA_MEMORY, rel=0.15)
    assert accelerator.interference.value < 0.2, "the fake's halves do not disturb each other"


def test_intervals_counts_and_conditions_are_kept(session: Any) -> None:
    profile = session[0]
    copy = profile.figures["copy_bytes_per_s"]
    assert copy.low <= copy.value <= copy.high
    assert copy.n >= 5
    assert profile.conditions["driver"] == "580.65.06"
    assert profile.conditions["power_limit_w"] == 700.0
    assert profile.conditions["slowdown_c"] == 87.0
    assert profile.versions["nvrtc"] == nvrtc.version()
    assert profile.kind == "measured"


def test_the_efficiency_rises_with_the_size_and_is_predicted_for_held_out_shapes(session: Any) -> None:
    profile, report, _ = session
    table = profile.accelerators["nvidia_h100_80gb_hbm3"].efficiency
    shares = [point.efficiency.value for point in table]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0, abs=0.05)
    line = next(fit for fit in report["fits"] if fit["name"] == "matrix products")
    assert line["held_out_error"] < 0.5


def test_what_is_not_there_is_said(session: Any) -> None:
    missing = session[1]["missing"]
    assert any(line.startswith("idle_w") for line in missing)


def test_old_samples_give_the_same_profile_without_the_hardware(session: Any) -> None:
    profile, _, folder = session
    again = folder / "again.yaml"
    samples = str(folder / "fake.samples.jsonl")
    done = calibrate_fakes.run(["calibrate", "--from", samples, "--out", str(again)])
    assert done.returncode == 0, done.stderr
    assert load_profile(str(again)).model_copy(update={"name": profile.name}) == profile


@pytest.mark.long
def test_a_kernel_that_computes_nonsense_stops_everything(tmp_path: Path) -> None:
    done = calibrate(machine="wrong", out=tmp_path / "p.yaml")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("equipoise: kernel tensor_bf16: wrong by")
    assert not (tmp_path / "p.yaml").exists()


def test_an_own_instruction_that_computes_nonsense_is_named_and_replaced(tmp_path: Path) -> None:
    done = calibrate("--seconds", "1", "--only", "copy,tensor", machine="wrongown", out=tmp_path / "p.yaml")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in json.loads(done.stdout)["missing"] if line.startswith("tensor ")]
    assert line.startswith("tensor bf16 by wgmma: kernel warpgroup_bf16: wrong by")
    assert line.endswith("; mma.sync is timed")
    figures = load_profile(str(tmp_path / "p.yaml")).figures
    assert "mma.sync" in figures["tensor_bf16_flop_per_s"].source
    assert "wgmma" in figures["tensor_fp16_flop_per_s"].source


@pytest.mark.long
def test_without_a_device_or_a_driver_one_line_says_so(tmp_path: Path) -> None:
    done = calibrate(machine="nodevice", out=tmp_path / "p.yaml")
    expected = "equipoise: the CUDA driver found no usable device (CUDA_ERROR_NO_DEVICE)\n"
    assert (done.returncode, done.stderr) == (1, expected)
    calibrate_fakes.needs_no("libcuda.so.1")
    done = calibrate_fakes.run(["calibrate", "--out", str(tmp_path / "p.yaml")], calibrate_fakes.nvml())
    assert (done.returncode, done.stderr) == (1, "equipoise: no NVIDIA driver here: libcuda.so.1 was not found\n")


@pytest.mark.long
def test_without_green_contexts_and_mps_the_rest_is_measured_and_the_gap_named(tmp_path: Path) -> None:
    done = calibrate("--seconds", "1", "--only", "copy,fma,share", machine="nogreen", out=tmp_path / "p.yaml")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in json.loads(done.stdout)["missing"] if line.startswith("share ")]
    assert "and 7 more: neither green contexts" in line
    assert "CUDA_ERROR_NOT_SUPPORTED" in line
    assert load_profile(str(tmp_path / "p.yaml")).figures["copy_bytes_per_s"].value > 0


def test_an_unknown_kind_is_wrong_input_and_names_the_known_ones(tmp_path: Path) -> None:
    done = calibrate("--only", "copy,bogus", out=tmp_path / "p.yaml")
    assert done.returncode == 2
    assert "unknown kind: bogus; known: copy, read, triad" in done.stderr


SUSTAINED = """
import json
from equipoise.calibrate.device import cuda
from equipoise.calibrate.device import nvml
from equipoise.calibrate.measure import sustained, tensor
device = cuda.Device(0)
with nvml.session():
    gpu = next(g for g in nvml.gpus() if g.uuid == device.uuid)
    print(json.dumps(sustained.record(device, gpu, tensor.warp_kernel("fp16"), (0.8, 0.8, 0.6)).columns))
"""


def test_a_sustained_load_is_recorded_with_power_temperature_and_clock() -> None:
    libraries = (calibrate_fakes.cuda(), calibrate_fakes.nvml())
    own_clock = str(libraries[0] / "libcuda.so.1")
    done = calibrate_fakes.python(SUSTAINED, *libraries, FAKE_NVML="hopper", LD_PRELOAD=own_clock)
    assert done.returncode == 0, done.stderr
    columns = json.loads(done.stdout)
    assert set(columns) == {"time_s", "loaded", "power_w", "temperature_c", "sm_clock_hz"}
    assert {len(column) for column in columns.values()} == {len(columns["time_s"])}
    flags = columns["loaded"]
    assert (flags[0], flags[-1], max(flags)) == (0.0, 0.0, 1.0)
    assert columns["power_w"] == pytest.approx([500.0] * len(flags), rel=1e-3)


def test_samples_of_the_session_hold_every_single_time(session: Any) -> None:
    samples = read_samples(session[2] / "fake.samples.jsonl")
    copies = samples.of("copy")
    assert {s.round for s in copies} <= {0, 1, 2}
    assert all(len(s.values) >= 5 and s.unit == "s" for s in copies)
    assert samples.distinct("share", "method") == ["green context"]
    shares = samples.distinct("share", "share")
    assert shares == [0.25, 0.5, 1.0]
