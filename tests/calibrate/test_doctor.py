"""The doctor through the unmodified NVML binding, against a fake driver library."""

from __future__ import annotations

import json

import pytest

from equipoise.calibrate.device.libraries import LibraryMissingError, load_library
from tests.calibrate import fakes as calibrate_fakes

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
    "hopper": "  0: NVIDIA H100 80GB HBM3, 85.9 GB",
    "ampere": "  0: NVIDIA A100-SXM4-80GB, 85.9 GB",
    "gone": "  1: unknown, memory unknown, lost",
}


def test_doctor_lists_the_gpus() -> None:
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
