from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from equipoise.sim.hardware import profile as hardware
from equipoise.sim.hardware.profile import (
    Accelerator,
    EfficiencyPoint,
    Fabric,
    FabricRange,
    HardwareProfile,
    Measured,
    list_profiles,
    load_profile,
    save_profile,
)
from equipoise.sim.scenario.tree import InputError

EXPECTED = (
    "generic v100_sxm2_32gb a100_sxm_40gb a100_sxm_80gb h100_sxm h100_pcie h200_sxm b200 l40s a10 t4 mi300x tpu_v5e"
)


def measured(value: float) -> Measured:
    return Measured(value=value, low=value * 0.9, high=value * 1.1, n=30, source="a test", kind="measured")


def test_the_catalogue_has_its_accelerators_each_number_with_its_origin() -> None:
    profile = load_profile("catalogue")
    assert {*EXPECTED.split()} <= {*profile.accelerators}
    assert "catalogue" in list_profiles()
    for name, accelerator in profile.accelerators.items():
        numbers = [v for k in type(accelerator).model_fields if isinstance(v := getattr(accelerator, k), Measured)]
        numbers += [*accelerator.flop_per_s.values(), *(p.efficiency for p in accelerator.efficiency)]
        assert len(numbers) >= 5, name
        assert all(number.source for number in numbers), name
        assert accelerator.price_date, name


@pytest.mark.parametrize(
    ("name", "precision", "flop_per_s", "hbm", "watts"),
    [
        ("h200_sxm", "bf16", 989.5e12, 4.8e12, 700.0),
        ("h100_sxm", "fp8", 1979e12, 3.35e12, 700.0),
        ("a100_sxm_80gb", "tf32", 156e12, 2.039e12, 400.0),
        ("t4", "fp16", 65e12, 320e9, 70.0),
        ("mi300x", "bf16", 1307.4e12, 5.3e12, 750.0),
    ],
)
def test_catalogue_states_dense_data_sheet_rates(
    name: str, precision: str, flop_per_s: float, hbm: float, watts: float
) -> None:
    accelerator = load_profile("catalogue").accelerator(name)
    assert accelerator.peak_flop_per_s(precision) == flop_per_s
    assert float(accelerator.hbm_bytes_per_s) == hbm
    assert accelerator.max_w is not None
    assert accelerator.max_w.value == watts
    assert accelerator.hbm_bytes_per_s.kind == "catalogue"


def test_what_no_data_sheet_states_is_none_or_marked_as_assumed() -> None:
    profile = load_profile("catalogue")
    tpu = profile.accelerator("tpu_v5e")
    assert tpu.max_w is None
    assert tpu.idle_w is None
    h100 = profile.accelerator("h100_sxm")
    assert h100.idle_w is not None
    assert h100.idle_w.kind == "assumed"
    assert all(number.kind == "assumed" for number in profile.accelerator("generic").flop_per_s.values())


def test_unknown_names_say_what_is_known() -> None:
    profile = load_profile("catalogue")
    with pytest.raises(ValueError, match=r"no accelerator 'h100'.*h100_sxm"):
        profile.accelerator("h100")
    with pytest.raises(ValueError, match="no rate for precision 'bf16'; known: fp32, fp16"):
        profile.accelerator("t4").peak_flop_per_s("bf16")
    with pytest.raises(InputError, match=r"unknown hardware profile 'catalog'; known: .*catalogue"):
        load_profile("catalog")
    with pytest.raises(InputError, match="no such file"):
        load_profile("nowhere/at-all.yaml")


def accelerator(**more: object) -> Accelerator:
    base = {"flop_per_s": {"bf16": "1 TFLOP/s"}, "hbm_bytes_per_s": "1 TB/s", "memory_bytes": "8 GB"}
    return Accelerator.model_validate(base | more)


def test_efficiency_is_linear_in_the_logarithm_of_size() -> None:
    points = [{"flop": 1e6, "efficiency": 0.1}, {"flop": 1e8, "efficiency": 0.5}, {"flop": 1e9, "efficiency": 0.6}]
    one = accelerator(efficiency=points)
    expected = {1e5: 0.1, 1e6: 0.1, 1e7: 0.3, 1e8: 0.5, 10**8.5: 0.55, 1e9: 0.6, 1e12: 0.6}
    for flop, share in expected.items():
        assert one.efficiency_at(flop) == pytest.approx(share, rel=1e-12)
    assert accelerator().efficiency_at(1e9) == 1.0
    with pytest.raises(ValidationError, match="sizes must increase"):
        accelerator(efficiency=points[::-1])


def test_numbers_take_kind_and_source_of_the_nearest_section(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        """
name: p
kind: measured
source: whole run
accelerators:
  a:
    flop_per_s: {bf16: 1 TFLOP/s, fp32: {value: 2 TFLOP/s, low: 1 TFLOP/s, n: 7, kind: fitted}}
    hbm_bytes_per_s: 1 TB/s
    memory_bytes: {value: 8 GB, kind: catalogue, source: data sheet}
  b: {source: its own, flop_per_s: {bf16: 1e12}, hbm_bytes_per_s: 1e12, memory_bytes: 1e9}
fabrics:
  - {tier: inter, collective: all_reduce, alpha_s: 5 us, bytes_per_s: 10 GB/s}
""",
        encoding="utf-8",
    )
    profile = load_profile(file)
    a, b = profile.accelerator("a"), profile.accelerator("b")
    assert a.hbm_bytes_per_s == Measured(value=1e12, source="whole run", kind="measured")
    assert a.flop_per_s["fp32"] == Measured(value=2e12, low=1e12, n=7, source="whole run", kind="fitted")
    assert a.memory_bytes == Measured(value=8e9, source="data sheet", kind="catalogue")
    assert b.memory_bytes == Measured(value=1e9, source="its own", kind="measured")
    assert profile.fabrics[0].alpha_s == Measured(value=5e-6, source="whole run", kind="measured")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("memory_bytes: 8 GB/s", "4:19: accelerators.a.memory_bytes: '8 GB/s' is a rate, a size is needed"),
        ("memory_bytes: -1", "4:19: accelerators.a.memory_bytes: -1 is too small"),
        ("memory_byte: 8 GB", "4:5: accelerators.a.memory_byte: unknown key; did you mean 'memory_bytes'?"),
        ("memory_bytes: {value: 8 GB, hi: 9 GB}", "accelerators.a.memory_bytes.hi: unknown key; did you mean 'high'?"),
        ("memory_bytes: {value: 8 GB, low: 9 GB}", "value 8e+09 is not between low 9e+09 and high 8e+09"),
        ("max_w: true", "accelerators.a.max_w: true is not a power"),
        ("price_usd_per_gpu_h: 2 USD/h", "accelerators.a.price_usd_per_gpu_h: needs price_date"),
        (
            "efficiency: [{flop: 1 GFLOP, efficiency: 1e30}]",
            "4:46: accelerators.a.efficiency.0.efficiency: 1e+30 is too large, a share must be at most 1",
        ),
        ("efficiency: [{flop: 1 GFLOP, efficiency: 0}]", "efficiency: 0 is too small, a share must be above 0"),
        ("price_usd_per_gpu_h: .inf", "4:26: accelerators.a.price_usd_per_gpu_h: .inf is not a finite number"),
        ("thermal_c_per_w: 0.1 K", "accelerators.a.thermal_c_per_w: '0.1 K': unit 'K' is not known"),
    ],
)
def test_mistakes_in_a_profile_are_located(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "p.yaml"
    rest = "flop_per_s: {bf16: 1e12}\n    hbm_bytes_per_s: 1 TB/s\n"
    needed = "" if text.startswith("memory_bytes") else "    memory_bytes: 8 GB\n"
    file.write_text(f"name: p\naccelerators:\n  a:\n    {text}\n    {rest}{needed}", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_profile(file)
    assert any(message in line and line.startswith(f"{file}:") for line in caught.value.lines), caught.value.lines


numbers = st.floats(1e-6, 1e11, allow_subnormal=False)
sources = st.text(max_size=12)
origins = st.sampled_from(["measured", "fitted", "catalogue", "assumed"])


@st.composite
def measureds(draw: st.DrawFn, most: float = 1e12) -> Measured:
    value = min(draw(numbers), most)
    low = draw(st.none() | st.just(value * 0.5))
    high = draw(st.none() | st.just(min(value * 2, most)))
    return Measured(
        value=value, low=low, high=high, n=draw(st.integers(0, 99)), source=draw(sources), kind=draw(origins)
    )


@st.composite
def profiles(draw: st.DrawFn) -> HardwareProfile:
    sizes = sorted(draw(st.sets(numbers, max_size=3)))
    table = tuple(EfficiencyPoint(flop=Measured(value=s), efficiency=draw(measureds(most=1.0))) for s in sizes)
    one = Accelerator(
        source=draw(sources),
        kind=draw(st.none() | origins),
        flop_per_s={"bf16": draw(measureds()), "fp32": draw(measureds())},
        hbm_bytes_per_s=draw(measureds()),
        memory_bytes=draw(measureds()),
        efficiency=table,
        tau_s=draw(st.none() | measureds()),
    )
    pieces = tuple(
        FabricRange(from_bytes=Measured(value=s), alpha_s=draw(measureds()), bytes_per_s=draw(measureds()))
        for s in sizes
    )
    fabric = Fabric(
        tier="inter", collective="all_reduce", alpha_s=draw(measureds()), bytes_per_s=draw(measureds()), pieces=pieces
    )
    conditions = draw(st.dictionaries(st.text(min_size=1, max_size=6), st.none() | st.booleans() | sources | numbers))
    return HardwareProfile(
        name=draw(sources),
        kind=draw(origins),
        source=draw(sources),
        date="2026-01-01",
        conditions=conditions,
        versions={"driver": draw(sources)},
        accelerators={"a": one},
        fabrics=(fabric,),
    )


@given(profiles())
def test_a_saved_profile_loads_equal(profile: HardwareProfile) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "p.yaml"
        save_profile(profile, file)
        hardware._load.cache_clear()  # equal times of change: the same name is written many times a second
        assert load_profile(file) == profile
        assert [p.name for p in Path(folder).iterdir()] == ["p.yaml"]


def test_a_profile_is_looked_up_beside_the_scenario_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside, working = tmp_path / "beside", tmp_path / "working"
    for folder in (beside, working):
        folder.mkdir()
        save_profile(HardwareProfile(name=folder.name), folder / "p.yaml")
    monkeypatch.chdir(working)
    assert load_profile("p.yaml", beside).name == "beside"
    assert load_profile("p.yaml").name == "working"
    (beside / "p.yaml").unlink()
    assert load_profile("p.yaml", beside).name == "working"
