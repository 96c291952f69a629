"""Laws of post-training: parts sum to steps, tokens are conserved, more GPUs never slow rollouts, being ahead helps."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise import run
from equipoise.sim.features.post_training.decode import Decode, done_s, lengths
from equipoise.sim.features.post_training.decode import _generate as generate
from equipoise.sim.features.post_training.phases import Phases, decode_for, parts, phases
from equipoise.sim.features.post_training.section import Loop, Response, loops_of
from equipoise.sim.loading.file import from_mapping
from equipoise.sim.scenario.model import Scenario

NODES = {"count": 4, "gpus": 8, "accelerator": "h100_sxm", "nic": "400 Gbit/s", "nics": 8}


def scenario(**keys: Any) -> Scenario:
    """One loop of an 8B model on 32 H100."""
    loop = {"model": "policy", "gpus": 32, "steps": 6, "prompts": 8, "response": {"mean": 400}, **keys}
    shape = {"config": "llama3-8b", "sequence": 4096, "stack": "megatron-core/H100", "layout": {"zero": 1}}
    models = {"policy": {"transformer": shape}}
    rest: dict[str, Any] = {"cluster": {"nodes": [NODES]}, "workload": {"models": models}, "post_training": [loop]}
    return from_mapping({"schema_version": 1, "name": "laws", **rest})


def found(case: Scenario) -> tuple[Loop, Phases]:
    """Its loop and phases."""
    (loop,) = loops_of(case)
    return loop, phases(loop, case, case.seed)


loops = st.fixed_dictionaries(
    {
        "algorithm": st.sampled_from(["grpo", "ppo", "dpo", "sft"]),
        "prompts": st.integers(1, 40),
        "samples": st.integers(1, 16),
        "steps": st.integers(1, 30),
        "response": st.fixed_dictionaries(
            {"mean": st.integers(1, 2000), "cov": st.sampled_from([0.0, 0.5, 1.5]), "most": st.just(4096)}
        ),
        "adapter": st.sampled_from(["none", "lora", "qlora"]),
        "evaluation": st.fixed_dictionaries({"every": st.integers(0, 3), "responses": st.integers(1, 64)}),
    }
)


@settings(max_examples=25, deadline=None)
@given(loops, st.sampled_from([None, 8, 16]), st.integers(0, 2), st.sampled_from([0.0, 2.5]))
def test_laws(keys: dict[str, Any], rollout: int | None, behind: int, calls: float) -> None:
    """Of each side, parts sum to the step; a run's job lasts as long as its steps; tokens are conserved."""
    if keys["algorithm"] in ("dpo", "sft"):
        rollout, behind = None, 0
    split = {"gpus": rollout, "tool_calls": calls, "tool_time": 3.0}
    case = scenario(**keys, rollout=split, behind=behind if rollout else 0)
    loop, p = found(case)
    step = parts(loop, p)
    trained = step.scoring_s + step.training_s + step.handover_s + step.other_s
    assert step.trainers_wait_s + trained == pytest.approx(step.step_s, rel=1e-6)
    if loop.generates and (not behind or not rollout):  # ahead, the first batches need no handover
        assert step.rollout_s + step.handover_s + step.replicas_wait_s == pytest.approx(step.step_s, rel=1e-6)
    drawn = [
        lengths(loop.response, loop.responses, case.seed, f"post_training:{loop.name}:{k}")
        for k in range(p.tokens.size)
    ]
    assert p.tokens.tolist() == [float((tokens + loop.prompt_tokens).sum()) for tokens in drawn]
    assert min(getattr(step, name) for name in ("rollout_s", "replicas_wait_s", "trainers_wait_s", "waiting")) >= 0.0
    made = run(case)
    assert made.totals["makespan_s"] == pytest.approx(step.total_s, rel=1e-9)
    assert made.tables["post_training"]["step_s"][0] == step.step_s
    if rollout:
        (sync,) = [parts(loop.model_copy(update={"behind": 0}), p)]
        assert step.total_s <= sync.total_s * (1 + 1e-9)
        assert sync.step_s == pytest.approx(sync.rollout_s + trained, rel=1e-6)
        (further,) = [parts(loop.model_copy(update={"behind": behind + 1}), p)]
        assert further.total_s <= step.total_s * (1 + 1e-9)
        if behind:
            streamed = scenario(**keys, rollout={**split, "stream": True}, behind=behind)
            assert parts(*found(streamed)).total_s <= step.total_s * (1 + 1e-9)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 300), st.sampled_from([0.0, 0.8, 2.0]), st.integers(1, 1500), st.integers(1, 300), st.integers(0, 9)
)
def test_more_gpus_never_slow_rollouts(count: int, cov: float, mean: int, slots: int, seed: int) -> None:
    """Twice the replicas take no longer: each has a part of what one had."""
    case = scenario(response={"mean": mean, "cov": cov}, rollout={"gpus": 4, "slots": slots})
    loop, _ = found(case)
    decode = decode_for(loop, case)
    times, tokens = [], lengths(loop.response, count, seed, "x")
    for gpus in (1, 2, 4, 8, 16):
        wider = loop.model_copy(update={"rollout": loop.rollout.model_copy(update={"gpus": gpus})})
        times.append(float(done_s(wider, decode, tokens, np.zeros(count))[0].max()))
    assert all(later <= earlier * (1 + 1e-9) for earlier, later in itertools.pairwise(times))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=30), st.integers(1, 40), st.integers(0, 50))
def test_batching_is_what_a_plain_loop_does(tokens: list[int], slots: int, prompt: int) -> None:
    """One iteration after the other: each response in progress gets a token; the next one takes a free slot."""
    d = Decode(0.5, 0.25, 0.001, 0.3, 0.4, 0.25, 0.07, slots)
    out = np.empty(len(tokens))
    generate(np.array(tokens, dtype=float), prompt, np.array(d[:-1]), np.empty((3, slots)), out)
    waiting, active, done, now_s = list(enumerate(tokens)), dict[int, list[int]](), [0.0] * len(tokens), 0.0
    while waiting or active:
        while waiting and len(active) < slots:
            number, left = waiting.pop(0)
            active[number] = [left, prompt]
        n = len(active)
        for held in active.values():
            held[0], held[1] = held[0] - 1, held[1] + 1
        weights_s = d.dense_s + d.experts_s * (1 - (1 - d.used) ** n)
        cached_s = d.token_s * sum(held for _, held in active.values())
        now_s += d.fixed_s + d.response_s * n + max(weights_s, d.product_s * n) + cached_s
        for number in [number for number, (left, _) in active.items() if not left]:
            done[number], _ = now_s, active.pop(number)
    assert out.tolist() == pytest.approx(done)


def test_lengths_keep_their_mean_after_the_cut() -> None:
    """Mean 3,000 of at most 4,096: most of the drawn are long, and many are cut."""
    drawn = lengths(Response(mean=3000, cov=0.8, most=4096), 200_000, 1, "x")
    assert drawn.mean() == pytest.approx(3000, rel=0.01)
    assert drawn.max() == 4096
    assert (drawn == 4096).mean() > 0.3


def test_fine_tuning_on_whole_sequences_is_plain_training() -> None:
    """Given responses that fill a sequence, nothing scored: the steps of a training job, one by one."""
    keys = {"algorithm": "sft", "prompt_tokens": 96, "response": {"mean": 4000, "cov": 0.0, "most": 4096}}
    tuned = scenario(**keys, prompts=64, samples=4, other=0.0, longer=1.0, steps=10)
    shape = tuned.workload.models["policy"].transformer
    assert shape is not None
    case = from_mapping(
        {
            "schema_version": 1,
            "name": "plain",
            "cluster": {"nodes": [NODES]},
            "workload": {
                "models": {"policy": {"transformer": shape.model_dump(exclude={"bound"}, exclude_none=True)}},
                "jobs": [{"name": "plain", "model": "policy", "gpus": 32, "global_batch": 256, "steps": 10}],
            },
            "restart": {"initialisation": 0.0},
        }
    )
    assert run(tuned).totals["makespan_s"] == pytest.approx(run(case).totals["makespan_s"], rel=0.02)


def test_adapters_save_gradients_of_frozen_weights() -> None:
    """LoRA: of three thirds of products one less, no exchange of gradients; QLoRA: weights are decoded beside."""
    whole, lora, qlora = (found(scenario(adapter=name))[1] for name in ("none", "lora", "qlora"))
    assert 0.6 * whole.training_s < lora.training_s < 0.75 * whole.training_s
    assert lora.training_s < qlora.training_s < whole.training_s
    assert lora.handover_s < whole.handover_s
    assert lora.scoring_s == whole.scoring_s
