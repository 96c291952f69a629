"""The monitor through the unmodified NVML binding, against a fake driver library."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from equipoise.calibrate.device.libraries import LibraryMissingError, load_library
from tests.calibrate import fakes as calibrate_fakes

GPM = ("SM_ACTIVE", "SM_OCCUPANCY", "PIPE_TENSOR_ACTIVE", "PIPE_FP32_ACTIVE", "DRAM_ACTIVE")


def monitor(machine: str, load: str = "gemm", *options: str, old: bool = False) -> list[dict[str, Any]]:
    arguments = ["monitor", "--count", "1", "--interval", "0.15", "--format", "jsonl", *options]
    library = calibrate_fakes.nvml(old)
    own_clock = str(library / "libnvidia-ml.so.1")
    done = calibrate_fakes.run(arguments, library, FAKE_NVML=machine, FAKE_NVML_LOAD=load, LD_PRELOAD=own_clock)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_hopper_gives_hardware_counters_under_dcgm_names_and_units() -> None:
    (row,) = monitor("hopper", "gemm", "--price", "2")
    assert row["DCGM_FI_PROF_SM_ACTIVE"] == pytest.approx(0.96)
    assert row["DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"] == pytest.approx(0.88)
    assert row["DCGM_FI_PROF_PCIE_RX_BYTES"] == pytest.approx(200 * 2**20)
    assert row["DCGM_FI_DEV_FB_TOTAL"] == 80 * 1024
    assert row["DCGM_FI_DEV_SM_CLOCK"] == 1935
    assert {row["sources"][f"DCGM_FI_PROF_{name}"] for name in GPM} == {"gpm"}
    assert row["limit"] == "compute"
    assert row["idle_usd_per_h"] == pytest.approx(2 * 0.04)
    assert row["processes"] == [{"pid": 1, "memory_bytes": 15 * 2**30, "time_share": 0.95, "gpu_instance": None}]
    assert row["missing"] == {}


def test_power_comes_from_the_energy_counter_not_from_the_power_reading() -> None:
    (row,) = monitor("hopper", "gemm", "--interval", "0.6")
    assert row["DCGM_FI_DEV_POWER_USAGE"] == pytest.approx(500.0, rel=1e-3)


def test_a_counter_whose_call_was_put_aside_is_read_again() -> None:
    """Its moment would be 75 ms beside the true one, a tenth of the time between the readings."""
    (row,) = monitor("ampere,hurdle", "gemm", "--interval", "0.6")
    assert row["DCGM_FI_DEV_POWER_USAGE"] == pytest.approx(500.0, rel=1e-3)
    for direction in ("TX", "RX"):
        assert row[f"DCGM_FI_PROF_NVLINK_{direction}_BYTES"] == pytest.approx(1.024e9, rel=1e-3)


def test_a_hot_gpu_is_limited_by_its_clock() -> None:
    (row,) = monitor("hot")
    assert (row["limit"], row["clock_reasons"]) == ("clock", ["software thermal slowdown"])


@pytest.mark.parametrize(("machine", "old"), [("ampere", False), ("hopper", True)])
def test_without_gpm_activity_is_null_never_zero_and_the_rest_says_nvml(machine: str, old: bool) -> None:
    (row,) = monitor(machine, "gemm", "--price", "2", old=old)
    for name in GPM:
        assert row[f"DCGM_FI_PROF_{name}"] is None
        assert row["missing"][f"DCGM_FI_PROF_{name}"]
    assert row["DCGM_FI_DEV_GPU_UTIL"] == 97
    assert row["DCGM_FI_PROF_NVLINK_TX_BYTES"] == pytest.approx(1.024e9, rel=1e-3)
    assert row["DCGM_FI_PROF_PCIE_TX_BYTES"] == 2048 * 1024
    assert row["sources"]["DCGM_FI_PROF_PCIE_TX_BYTES"] == "nvml"
    assert row["limit"] == "unknown"
    assert row["idle_usd_per_h"] == pytest.approx(2 * 0.03)


def test_missing_permissions_are_named_and_cost_only_their_own_values() -> None:
    (row,) = monitor("noperm")
    assert row["DCGM_FI_PROF_SM_ACTIVE"] is None
    assert "Permission" in row["missing"]["DCGM_FI_PROF_SM_ACTIVE"]
    assert row["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"] is None
    assert row["DCGM_FI_DEV_POWER_USAGE"] == 111.0
    assert row["DCGM_FI_DEV_GPU_TEMP"] == 61


def test_a_counter_that_is_not_there_or_not_a_number_is_null_with_its_reason() -> None:
    (row,) = monitor("partial")
    assert row["DCGM_FI_PROF_SM_ACTIVE"] == pytest.approx(0.96)
    assert row["DCGM_FI_PROF_PIPE_FP64_ACTIVE"] is None
    assert row["missing"]["DCGM_FI_PROF_PIPE_FP64_ACTIVE"] == "Not Supported"
    assert row["missing"]["DCGM_FI_PROF_NVLINK_RX_BYTES"] == "not a number"


HURRIED = """
from equipoise.calibrate.device import nvml
from equipoise.calibrate.monitor.readings import Sampler
with nvml.session():
    samplers = [Sampler(gpu) for gpu in nvml.gpus()]
    readings = [[s.read() for s in samplers] for _ in range(3)]
    for s in samplers:
        s.close()
print([r.get("PROF_SM_ACTIVE") for batch in readings for r in batch])
"""


def test_readings_in_a_hurry_wait_for_the_counters_least_interval() -> None:
    """The driver refuses samples less than 100 ms apart."""
    done = calibrate_fakes.python(HURRIED, calibrate_fakes.nvml(), FAKE_NVML="two")
    assert (done.returncode, done.stdout) == (0, "[None, None, 0.96, 0.96, 0.96, 0.96]\n"), done.stderr


def test_mig_instances_have_rows_of_their_own() -> None:
    whole, first, second = monitor("mig", "gemm", "--price", "2")
    assert [r["instance"] for r in (whole, first, second)] == [None, "1/0", "2/0"]
    assert first["DCGM_FI_PROF_SM_ACTIVE"] == pytest.approx(0.96)
    assert second["DCGM_FI_PROF_SM_ACTIVE"] == pytest.approx(0.50)
    assert second["DCGM_FI_DEV_FB_TOTAL"] == 10 * 1024
    assert second["DCGM_FI_DEV_POWER_USAGE"] is None
    assert whole["processes"][0]["gpu_instance"] == 1
    assert whole["processes"][0]["time_share"] is None
    assert first["idle_usd_per_h"] is None, "the price is that of the whole GPU"


@pytest.mark.parametrize("machine", ["gone", "lost"])
def test_a_lost_gpu_is_reported_and_the_other_one_goes_on(machine: str) -> None:
    rows = monitor(machine, "gemm", "--count", "4")
    other, last = rows[-2:]
    assert other["DCGM_FI_PROF_SM_ACTIVE"] == pytest.approx(0.96)
    assert last["gpu"] == 1
    assert last["limit"] == "lost"
    assert "lost" in last["lost"]
    assert last["DCGM_FI_DEV_GPU_TEMP"] is None


def test_only_the_gpus_asked_for() -> None:
    assert [row["gpu"] for row in monitor("two", "gemm", "--gpu", "1")] == [1]


def test_no_library_and_no_driver_are_one_line() -> None:
    calibrate_fakes.needs_no("libnvidia-ml.so.1")
    nothing = calibrate_fakes.folder() / "empty"
    nothing.mkdir(exist_ok=True)
    done = calibrate_fakes.run(["monitor", "--count", "1"], nothing)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "equipoise: no NVIDIA driver here: libnvidia-ml.so.1 was not found\n"
    done = calibrate_fakes.run(["monitor", "--count", "1"], calibrate_fakes.nvml(), FAKE_NVML="nodriver")
    assert done.returncode == 1
    assert re.fullmatch(r"equipoise: .*kernel driver is not loaded\n", done.stderr)


@pytest.mark.parametrize("value", ["seventy", "127.0.0.1:", "127.0.0.1:99999"])
def test_a_bad_address_is_wrong_input(value: str) -> None:
    done = calibrate_fakes.run(["monitor", "--listen", value], calibrate_fakes.nvml())
    assert done.returncode == 2
    assert "HOST:PORT" in done.stderr


def test_prometheus_serves_the_same_values(tmp_path: Path) -> None:
    arguments = ["monitor", "--listen", "127.0.0.1:0", "--interval", "0.2", "--format", "jsonl"]
    arguments += ["--price", "3"]
    command = [sys.executable, "-c", calibrate_fakes.COMMAND_LINE, *arguments]
    env = calibrate_fakes.environment(calibrate_fakes.nvml(), FAKE_NVML="two", FAKE_NVML_LOAD="gemm")
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        address = process.stderr.readline().split()[-1]
        text = _scrape(f"http://{address}")
    finally:
        process.terminate()
        process.communicate(timeout=60)
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    active = [(one.labels["gpu"], one.value) for one in samples if one.name == "DCGM_FI_PROF_SM_ACTIVE"]
    assert active == [("0", 0.96), ("1", 0.96)]
    assert [one.value for one in samples if one.name == "equipoise_gpu_lost"] == [0, 0]
    idle = [one.value for one in samples if one.name == "equipoise_gpu_idle_usd_per_hour"]
    assert idle == pytest.approx([0.12, 0.12])


def _scrape(url: str) -> str:
    """The metrics, once the first reading is there."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with urllib.request.urlopen(url, timeout=10) as answer:
            text = str(answer.read().decode())
        if "DCGM" in text:
            return text
        time.sleep(0.1)
    raise AssertionError("no reading appeared")


# -- doctor -----------------------------------------------------------------------------------------------

DOCTOR = """
import json, os
from equipoise.commands.hardware import doctor
gpus = {}
for machine in os.environ.get("MACHINES", "").split():
    os.environ["FAKE_NVML"] = machine
    gpus[machine] = doctor._gpus()
print(json.dumps([gpus, doctor._calibration()]))
"""
MACHINES = {
    "hopper": "  0: NVIDIA H100 80GB HBM3, 85.9 GB, hardware counters available",
    "ampere": "  0: NVIDIA A100-SXM4-80GB, 85.9 GB, no hardware counters (GPM needs Hopper or later)",
    "noperm": "  0: NVIDIA H100 80GB HBM3, 85.9 GB, no hardware counters (Insufficient Permissions)",
    "gone": "  1: unknown, memory unknown, lost",
    "mig": "  0 MIG 2/0: NVIDIA H100 80GB HBM3 MIG 1g.10gb, 10.7 GB, hardware counters available",
}


def test_doctor_says_which_counters_answer() -> None:
    done = calibrate_fakes.python(DOCTOR, calibrate_fakes.nvml(), MACHINES=" ".join(MACHINES))
    assert done.returncode == 0, done.stderr
    gpus, _ = json.loads(done.stdout)
    for machine, line in MACHINES.items():
        assert line in gpus[machine]


@pytest.mark.long
def test_doctor_says_what_calibration_would_use() -> None:
    with_fake = json.loads(calibrate_fakes.python(DOCTOR, calibrate_fakes.cuda()).stdout)[1]
    assert "cuBLASLt 130000" in with_fake
    assert with_fake[2].startswith("PyTorch ")
    try:
        load_library("cublasLt", ("libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"), "")
    except LibraryMissingError:
        without = json.loads(calibrate_fakes.python(DOCTOR).stdout)[1]
        assert without[1].startswith("no cuBLASLt (libcublasLt was not found: install PyTorch for CUDA")
