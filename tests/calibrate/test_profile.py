"""Samples to profile: the numbers mean in the simulator what they meant on the machine."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from equipoise.calibrate.check import compare
from equipoise.calibrate.fit import accelerator
from equipoise.calibrate.fit.fabric import as_fabric, messages
from equipoise.calibrate.fit.pieces import fit_collective
from equipoise.calibrate.profile import build_profile
from equipoise.calibrate.samples import Sample, SampleSet, SampleWriter, read_samples
from equipoise.policies.physics import overlapped_s
from equipoise.sim.hardware.profile import HardwareProfile, Measured, load_profile, save_profile

CONDITIONS = {"device": "NVIDIA Test (TM) 9", "driver": "1", "memory_bytes": 8e10, "slowdown_c": 85.0}
PEAK, BANDWIDTH, LAUNCH = 1e14, 2e12, 2e-6


def gemm_s(n: int) -> float:
    return LAUNCH + max(2.0 * n**3 / PEAK, 6.0 * n * n / BANDWIDTH)


def synthetic() -> SampleSet:
    """Noise-free samples of a device with known constants, three rounds of each."""
    samples = [Sample("sustained", {"idle_s": 5.0}, (), "s", 0, "2030-01-02", heat_columns())]
    for round_ in range(3):

        def add(kind: str, seconds: float, unit: str = "s", r: int = round_, **parameters: object) -> None:
            values = tuple(seconds * f for f in (1.0, 1.0, 1.0, 1.2, 3.0))  # interruptions only slow down
            samples.append(Sample(kind, parameters, values, unit, r, "2030-01-02T00:00:00"))  # type: ignore[arg-type]

        add("copy", 2e9 / BANDWIDTH, bytes=2e9, array_bytes=1e9)
        add("copy", 2e6 / (3 * BANDWIDTH), bytes=2e6, array_bytes=1e6)  # from the cache: not the memory's rate
        add("fma", 1e9 / 2e13, precision="fp32", flop=1e9)
        for n in (128, 256, 512, 1024, 2048, 4096, 8192):
            add("gemm", gemm_s(n), precision="bf16", m=n, n=n, k=n, library="lib")
        add("gemm", gemm_s(4096) * 1.01, precision="bf16", m=4096, n=4096, k=4096, library="second")
        add("launch_pipelined", LAUNCH)
        for share in (0.25, 0.5, 1.0):
            for kernel, kappa in (("compute", 5.0), ("memory", 0.2)):
                speed = (1 + kappa) * share / (share + kappa)
                add("share", 1e-3 / speed, kernel=kernel, share=share, method="green context")
        samples.append(
            Sample(
                "interference",
                {"kernel": "compute", "neighbour": "memory", "others_utilisation": 1.0},
                (1.25, 1.25),
                "1",
                round_,
            )
        )
        for ranks in (2, 8):
            for size in 2.0 ** np.arange(10, 28, 2):
                sequence, carried = messages("all_reduce", ranks)
                seconds = sequence * 4e-6 + carried * size / 1.5e11
                add("collective", seconds, collective="all_reduce", backend="nccl", ranks=ranks, bytes=size)
        for batch in (1, 2, 4):
            alone, exchange = 0.01 + 0.002 * batch, 0.01
            columns = {"step_s": [alone] * 2, "exchange_s": [exchange] * 2}
            columns["together_s"] = [overlapped_s(alone, exchange, 2.5)] * 2
            what = {"workload": "net", "precision": "bf16", "batch": batch, "backend": "nccl", "ranks": 8}
            samples.append(Sample("overlap", what, (), "s", round_, columns=columns))
        for batch in (1, 2, 4, 8, 16):
            add("training", 0.01 + 0.002 * batch, workload="net", precision="bf16", batch=batch, framework="X")
    return SampleSet(CONDITIONS, {"numpy": "2"}, tuple(samples))


def test_kinds_that_are_not_fitted_are_read_and_named(tmp_path: Path) -> None:
    """Files of earlier versions hold operations of steps and products of single layers ("part")."""
    known = synthetic()
    layer = {"precision": "bf16", "m": 64, "n": 64, "k": 64, "part": "weight", "library": "lib"}
    old = [
        Sample("attention", {"part": "forward"}, (1e-3,)),
        Sample("operations", {}, (), columns={"kind": [0.0], "m": [1.0]}),
        Sample("gemm", layer, (1e-12,)),  # 5e17 FLOP/s, were it a whole product
    ]
    writer = SampleWriter(tmp_path / "old.jsonl", known.conditions, known.versions)
    for sample in (*known.samples, *old):
        writer.add(sample)
    writer.close()
    profile, report = build_profile(read_samples(tmp_path / "old.jsonl"), "p")
    assert report.notes == ["2 samples of kinds that are not fitted: attention, operations"]
    (accelerator,) = profile.accelerators.values()
    assert accelerator.flop_per_s["bf16"].value <= PEAK


def heat_columns() -> dict[str, list[float]]:
    """60 s of load at 500 W between idle at 80 W; tau 10 s, 0.08 C/W, 25 C; the clock falls above 60 C."""
    time = np.arange(0.0, 100.0, 0.5)
    loaded = (time >= 20.0) & (time < 80.0)
    power = np.where(loaded, 500.0, 80.0)
    temperature = [31.4]
    for watts in power[1:]:
        decay = math.exp(-0.05)
        temperature.append(temperature[-1] * decay + (1 - decay) * (25.0 + 0.08 * watts))
    clock = 2e9 * (1 - 0.01 * np.maximum(np.array(temperature) - 60.0, 0.0))
    return {
        "time_s": time.tolist(),
        "loaded": loaded.astype(float).tolist(),
        "power_w": power.tolist(),
        "temperature_c": temperature,
        "sm_clock_hz": clock.tolist(),
    }


@pytest.fixture(scope="module")
def profile() -> HardwareProfile:
    return build_profile(synthetic(), "test")[0]


def test_rates_are_those_of_uninterrupted_runs_on_data_past_the_cache(profile: HardwareProfile) -> None:
    gpu = profile.accelerators["nvidia_test_9"]
    assert gpu.hbm_bytes_per_s.value == pytest.approx(BANDWIDTH, rel=1e-5)
    assert gpu.flop_per_s["bf16"].value == pytest.approx(2 * 8192**3 / gemm_s(8192), rel=1e-5)
    assert gpu.flop_per_s["fp32"].value == pytest.approx(2e13, rel=1e-5)
    assert gpu.launch_latency_s is not None
    assert gpu.launch_latency_s.value == pytest.approx(LAUNCH)
    assert gpu.memory_bytes.value == 8e10
    assert gpu.vendor == "NVIDIA"


def test_the_efficiency_table_gives_the_products_time_back(profile: HardwareProfile) -> None:
    gpu = profile.accelerators["nvidia_test_9"]
    for n in (128, 1024, 8192):
        seconds = 2.0 * n**3 / (gpu.peak_flop_per_s("bf16") * gpu.efficiency_at(2.0 * n**3))
        assert seconds == pytest.approx(gemm_s(n), rel=0.03)


def test_shares_interference_power_and_heat_are_those_of_the_device(profile: HardwareProfile) -> None:
    gpu = profile.accelerators["nvidia_test_9"]
    known = {
        "share_kappa": 5.0,
        "interference": 0.5,  # half of the device slows by a quarter
        "idle_w": 80.0,
        "max_w": 500.0,
        "thermal_c_per_w": 0.08,
        "tau_s": 10.0,
        "throttle_c": 85.0,
    }
    for name, truth in known.items():
        number = getattr(gpu, name)
        assert isinstance(number, Measured), name
        assert number.value == pytest.approx(truth, rel=0.03), name
    assert gpu.throttle_slope is None, "it never reached 85 C"
    assert profile.figures["share_kappa_memory_1"].value == pytest.approx(0.2, rel=0.01)


def test_the_fabric_s_closed_form_gives_the_exchange_time_back(profile: HardwareProfile) -> None:
    fabric = profile.fabric("intra", "all_reduce", "nvidia_test_9")
    assert fabric is not None
    for ranks in (2, 8):
        for size in (1e3, 1e6, 1e8):
            alpha, rate = fabric.constants_at(size)
            got = 2 * (ranks - 1) * alpha + 2 * (ranks - 1) / ranks * size / rate
            assert got == pytest.approx(2 * (ranks - 1) * 4e-6 + 2 * (ranks - 1) / ranks * size / 1.5e11, rel=0.01)


def test_training_steps_and_the_one_not_fitted(profile: HardwareProfile) -> None:
    (step,) = profile.steps
    assert (step.alpha_s.value, step.beta_s.value) == pytest.approx((0.01, 0.002))
    assert step.overlap is not None
    assert step.overlap.value == pytest.approx(2.5, rel=0.05)
    assert step.overlap.source == "nccl, 8 ranks"
    _, report = build_profile(synthetic(), "test")
    (prediction,) = report.predictions
    assert prediction.batch == 16
    assert prediction.predicted.value == pytest.approx(0.042)
    assert prediction.error == pytest.approx(0.0, abs=1e-9)


def test_a_profile_is_read_back_equal(profile: HardwareProfile, tmp_path: Path) -> None:
    save_profile(profile, tmp_path / "p.yaml")
    assert load_profile(str(tmp_path / "p.yaml")) == profile


def test_what_is_missing_is_named_and_left_out() -> None:
    kept = tuple(s for s in synthetic().samples if s.kind in ("copy", "fma"))
    profile, report = build_profile(SampleSet(CONDITIONS, {}, kept), "x")
    assert profile.fabrics == ()
    assert profile.accelerators["nvidia_test_9"].share_kappa is None
    assert "share_kappa: no samples" in report.missing


@given(
    st.lists(st.floats(0.4, 2.5), min_size=6, max_size=12),
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"]),
    st.integers(2, 64),
)
@settings(max_examples=25, deadline=None)
@example([1.0, 1.0, 1.0, 2.0, 0.75, 0.4375, 0.40625, 2.5, 1.0, 1.0], "all_reduce", 2)
def test_any_fit_is_the_same_function_in_the_profile(wobble: list[float], collective: str, ranks: int) -> None:
    sizes = 2.0 ** (10 + 2 * np.arange(len(wobble)))
    fit = fit_collective(sizes, (1e-5 + sizes / 1e10) * np.array(wobble))
    fabric = as_fabric(fit, collective, ranks, "a", "test")
    sequence, carried = messages(collective, ranks)
    for piece in fit.pieces:
        for size in np.linspace(piece.from_bytes, piece.to_bytes, 4):
            alpha, rate = fabric.constants_at(float(size))
            assert sequence * alpha + carried * size / rate == pytest.approx(fit.predict([size])[0], rel=1e-4)
    between = np.geomspace(sizes[0] / 8, sizes[-1] * 8, 300)
    constants = [fabric.constants_at(float(size)) for size in between]
    seconds = np.array([sequence * a + carried * s / r for (a, r), s in zip(constants, between, strict=True)])
    assert (np.abs(seconds / fit.predict(between) - 1.0) < 0.12).all(), "bridges are followed in steps"


def profile_with(copy: Measured, **figures: Measured) -> HardwareProfile:
    return HardwareProfile(name="p", kind="measured", figures={"copy_bytes_per_s": copy, **figures})


def test_drift_is_what_lies_beyond_both_intervals() -> None:
    before = profile_with(Measured(value=100.0, low=95.0, high=105.0, n=9, kind="measured"))
    for value, low, high, beyond in (
        (110.0, 104.0, 116.0, False),
        (120.0, 110.0, 130.0, True),
        (80.0, 70.0, 94.0, True),
    ):
        now = {"copy_bytes_per_s": Measured(value=value, low=low, high=high, n=9, kind="measured")}
        (drift,) = compare(before, "cpu", now)
        assert drift.beyond is beyond
        assert drift.change == pytest.approx(value / 100.0 - 1.0)


def test_a_counter_that_moves_in_steps_does_not_lower_the_power() -> None:
    """480 W read every 0.23 s from a counter of 0.1 s: most readings hold two steps, some three."""
    times = np.arange(1, 101) * 0.23
    steps = np.floor(times / 0.1) * 0.1 * 480.0
    loaded = (times > 5.0).astype(float)
    columns = {"loaded": loaded, "time_s": times, "power_w": np.diff(steps, prepend=0.0) / 0.23}
    found = accelerator._power(columns)
    assert found["max_w"] is not None
    assert found["idle_w"] is not None
    assert np.median(columns["power_w"]) < 425.0
    assert found["max_w"].value == pytest.approx(480.0, rel=0.05)
    assert found["idle_w"].value == pytest.approx(480.0, rel=0.05)
