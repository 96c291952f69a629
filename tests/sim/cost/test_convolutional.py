"""Image models by their layers: published parameters and FLOP are found again, and a run uses them."""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.sim.loading.file import from_mapping
from equipoise.sim.run import run
from equipoise.sim.scenario.model import Model
from equipoise.sim.scenario.models.convolutional import Convolutional
from equipoise.sim.scenario.tree import InputError

IMAGE = [3, 224, 224]
STEM = {"layers": [{"channels": 64, "kernel": 7, "stride": 2}, {"kind": "pool", "stride": 2}]}
TAIL = {"layers": [{"kind": "mean"}, {"kind": "dense", "channels": 1000}]}
STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))


def resnet50() -> dict[str, Any]:
    def bottleneck(width: int, stride: int) -> list[dict[str, int]]:
        one = {"channels": width, "kernel": 1}
        return [one, {"channels": width, "stride": stride}, {"channels": 4 * width, "kernel": 1}]

    body = [{"layers": bottleneck(w, s), "repeat": n, "shortcut": "projected"} for w, n, s in STAGES]
    return {"input": IMAGE, "blocks": [STEM, *body, TAIL]}


def vgg16() -> dict[str, Any]:
    sizes = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
    body = [{"layers": [{"channels": w}] * n + [{"kind": "pool", "stride": 2}]} for w, n in sizes]
    head = {"layers": [{"kind": "dense", "channels": n} for n in (4096, 4096, 1000)]}
    return {"input": IMAGE, "norm": False, "blocks": [*body, head]}


def mobilenet_v2() -> dict[str, Any]:
    """Sandler et al. 2018, table 2: expansion, channels, repetitions, stride."""
    blocks: list[dict[str, Any]] = [{"layers": [{"channels": 32, "stride": 2}]}]
    inputs = 32
    for t, c, n, s in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):
        for k in range(n):
            wide = [{"channels": t * inputs, "kernel": 1}] if t > 1 else []
            own = [{"groups": 0, "stride": 1 if k else s}, {"channels": c, "kernel": 1}]
            blocks.append({"layers": [*wide, *own], "shortcut": "equal"})
            inputs = c
    return {"input": IMAGE, "blocks": [*blocks, {"layers": [{"channels": 1280, "kernel": 1}]}, TAIL]}


@pytest.mark.parametrize(
    ("network", "parameters", "multiply_adds"),
    [(resnet50(), 25.557e6, 4.089e9), (vgg16(), 138.358e6, 15.47e9), (mobilenet_v2(), 3.505e6, 0.3008e9)],
)
def test_published_sizes_are_found_again(network: dict[str, Any], parameters: float, multiply_adds: float) -> None:
    sums = Convolutional.model_validate(network).tally()
    assert sums.parameters == pytest.approx(parameters, rel=2e-4)
    assert sums.forward_flop == pytest.approx(2 * multiply_adds, rel=2e-4)


def case(model: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "name": "images",
        "cluster": {"nodes": [{"count": 2, "gpus": 4, "accelerator": "a100_sxm_80gb", "nic": "100 Gbit/s"}]},
        "workload": {"models": {"m": model}, "jobs": [{"gpus": 8, "model": "m", "steps": 40, "global_batch": 512}]},
    }


def makespan_s(**keys: Any) -> float:
    return float(run(from_mapping(case({"convolutional": resnet50(), **keys}))).totals["makespan_s"])


def test_a_run_takes_what_follows_from_the_layers_and_can_be_written_and_read_again() -> None:
    scenario = from_mapping(case({"convolutional": resnet50()}))
    model = scenario.workload.models["m"]
    assert model.parameters == pytest.approx(25.557e6, rel=1e-4)
    assert model.memory.activation_per_sample == pytest.approx(45e6, rel=0.05)  # 16-bit
    again = from_mapping(scenario.model_dump(mode="json"))
    assert again.workload.models["m"] == model
    assert makespan_s() < makespan_s(precision="fp32")


def test_evaluations_lengthen_the_run_by_their_share() -> None:
    plain = makespan_s(fixed_time=0.0)
    third = makespan_s(fixed_time=0.0, evaluation={"every": 1000, "samples": 300})
    fixed = makespan_s(fixed_time=0.0, evaluation={"every": 512, "time": "0.5 s"})
    assert fixed - plain == pytest.approx(40 * 0.5, rel=1e-3)
    assert 1.03 < third / plain <= 1.1 + 1e-9  # a third of 30 %, of what is computed


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"convolutional": resnet50(), "parameters": 1e6}, "parameters: follows from 'convolutional'"),
        ({"convolutional": {"input": IMAGE, "blocks": [{"layers": [{"groups": 2}]}]}}, "groups: 2 does not divide"),
    ],
)
def test_what_does_not_go_together_is_one_line(model: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said) as raised:
        from_mapping(case(model))
    assert len(raised.value.lines) == 1


@pytest.mark.parametrize("layer", [{"channels": 4, "groups": 2}, {"channels": 4, "groups": 3}])
def test_groups_divide_what_comes_in_and_what_goes_out(layer: dict[str, int]) -> None:
    wrong = Convolutional.model_validate({"input": IMAGE, "blocks": [STEM, {"layers": [layer]}]})
    three = wrong.model_copy(update={"blocks": wrong.blocks[1:]})
    with pytest.raises(ValueError, match=r"blocks.0.layers: groups: \d does not divide 3 and 4 channels"):
        three.tally()


def test_a_small_network_layer_by_layer() -> None:
    """From (3, 8, 6): 4 x 4 x 3, pooled to 4 x 2 x 2, 8 x 1 x 1 twice, ten classes. By layer, with its norm:

    parameters 108 + 8, 16 + 16, 32 + 16 (projected), 32 + 16, 80 + 10; products of 108 weights at 12 places, then
    16, 32, 32 and 80 at one; traffic 1200, 128 (pool), 176, 176, 40 (sum), 152, 40, 32 (mean), 114.
    """
    pool, mean = {"kind": "pool", "stride": 2}, {"kind": "mean"}
    blocks = [
        {"layers": [{"channels": 4, "stride": 2}, pool]},
        {"layers": [{"channels": 8, "kernel": 1, "groups": 2, "stride": 2}], "repeat": 2, "shortcut": "projected"},
        {"layers": [mean, {"kind": "dense", "channels": 10}]},
    ]
    made = Convolutional.model_validate({"input": [3, 8, 6], "blocks": blocks})
    sums = made.tally()
    assert (sums.parameters, sums.forward_flop, sums.first_flop) == (334, 2592 + 32 + 64 + 64 + 160, 2592)
    assert (sums.moved, sums.kept, sums.layers) == (2058, 96 + 16 + 16 + 16 + 16 + 8 + 10, 4)
    found = made.follows(Model.model_validate({"convolutional": made}), 2)
    assert (found["flop_per_sample"], found["bytes_per_sample"]) == (3 * 2912 - 2592, 2 * 2058)
    assert found["memory"].activation_per_sample == 2 * (178 + 144)  # type: ignore[attr-defined]
    assert found["memory"].layers == 4  # type: ignore[attr-defined]
    deep = {"layers": [{"groups": 0, "stride": 3}], "shortcut": "equal"}
    flat = {"layers": [{"kernel": 1}], "repeat": 2, "shortcut": "equal"}
    plain = Convolutional.model_validate({"input": [3, 8, 6], "norm": False, "blocks": [deep, flat]}).tally()
    # 27 weights and 3 biases for 3 x 3 x 2, of which no sum is made; then 9 and 3, with one, twice.
    assert (plain.parameters, plain.forward_flop) == (54, 2 * 27 * 6 + 2 * 2 * 9 * 6)
    assert (plain.moved, plain.kept) == (3 * 144 + 9 * 18 + 2 * (12 * 18 + 5 * 18), 54)
