"""How long each phase of a step takes, and how the phases follow each other."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from equipoise.policies.observation import Floats
from equipoise.sim.cost.transformer import accelerator_of, plan_of, section, stack_in_force
from equipoise.sim.features.post_training.decode import DRAWN, Decode, alone_s, decode_of, done_s, lengths, tool_waits_s
from equipoise.sim.features.post_training.section import Loop, nodes_of
from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.llm.step_time import StepEstimate, step_time
from equipoise.sim.network.topology import link_bytes_per_s
from equipoise.sim.scenario.model import Model, Scenario

LONGER = {"dense": 1.37, "experts": 3.6}
"""How much longer training and scoring take than the step of pre-training: packing of unequal lengths, small batches,
and experts without the kernels of pre-training. Geometric means of three dense models and one with experts (NVIDIA
NeMo-RL 0.3, table 1): `tests/features/post_training/runs.py`."""
NF4, HALF = 0.5, 2.0
"""Bytes of a weight in QLoRA's format, and in 16 bits."""


@dataclass(frozen=True)
class Phases:
    """Seconds of the phases of a step: rollouts and their uneven end by drawn step, (drawn,); tokens (drawn,)."""

    rollout_s: Floats
    tail_s: Floats
    tokens: Floats
    longest_s: Floats  # each step's longest response, alone on its replica
    scoring_s: float
    training_s: float
    handover_s: float
    other_s: float

    @property
    def trainer_s(self) -> float:
        """What trainers do in a step."""
        return self.scoring_s + self.training_s + self.handover_s + self.other_s

    def times(self, rollout: float, training: float) -> Phases:
        """With rollouts, and scoring with training, so many times as long."""
        return replace(
            self,
            rollout_s=rollout * self.rollout_s,
            tail_s=rollout * self.tail_s,
            longest_s=rollout * self.longest_s,
            scoring_s=training * self.scoring_s,
            training_s=training * self.training_s,
        )


@dataclass(frozen=True)
class StepParts:
    """Mean seconds of a step and its parts. For replicas, step = rollout + handover + replicas_wait; for trainers,
    step = scoring + training + handover + other + trainers_wait. tail: of the rollouts, in which a replica is done."""

    step_s: float
    rollout_s: float
    scoring_s: float
    training_s: float
    handover_s: float
    other_s: float
    replicas_wait_s: float
    trainers_wait_s: float
    tail_s: float
    tokens: float  # of a step, prompts included
    total_s: float  # of all steps
    waiting: float  # share of the GPU time in which GPUs wait


def phases(loop: Loop, scenario: Scenario, seed: int) -> Phases:
    """The phases of a loop, whose scenario is loaded. Raises ValueError on GPUs that its layouts cannot use."""
    drawn = min(DRAWN, loop.steps)
    decode = decode_for(loop, scenario)
    rolled = _rolled(loop, decode, drawn, seed)
    given = [tokens for _, _, tokens in rolled]
    every = np.concatenate(given) + loop.prompt_tokens
    model = scenario.workload.models[loop.model]
    training_s, forward_s = _work_s(loop, model, scenario, every, drawn)
    scoring_s = loop.scorings * forward_s
    if loop.algorithm == "ppo":
        critic = _work_s(loop, scenario.workload.models[loop.critic or loop.model], scenario, every, drawn)
        training_s, scoring_s = training_s + critic[0], scoring_s + critic[1]
    if loop.reward is not None:
        scoring_s += _work_s(loop, scenario.workload.models[loop.reward], scenario, every, drawn)[1]
    ends_s, tails_s, longest_s = (
        np.array(times) if loop.generates else np.zeros(drawn)
        for times in (
            [end for end, _, _ in rolled],
            [tail for _, tail, _ in rolled],
            [alone_s(decode, loop.prompt_tokens, float(tokens.max())) for tokens in given],
        )
    )
    return Phases(
        ends_s,
        tails_s,
        np.array([tokens.sum() + loop.responses * loop.prompt_tokens for tokens in given]),
        longest_s,
        scoring_s,
        training_s,
        _handover_s(loop, model, scenario),
        loop.other,
    )


@lru_cache(maxsize=64)
def _rolled(loop: Loop, decode: Decode, drawn: int, seed: int) -> list[tuple[float, float, Floats]]:
    """(seconds, mean seconds that replicas wait for the last, tokens of each response) of each drawn step's rollouts.

    Streamed rollouts of a step end so much after those of the step before, which go first: replicas wait for none, and
    no step takes longer than alone.
    """
    given = loop if loop.generates else loop.model_copy(update={"algorithm": "grpo"})
    names = [f"post_training:{loop.name}:{step}" for step in range(drawn)]
    tokens = [lengths(loop.response, loop.responses, seed, name) for name in names]
    tools = [tool_waits_s(loop, loop.responses, seed, name) for name in names]
    more = _evaluation_s(given, decode, seed)
    every = [done_s(given, decode, *both)[1] for both in zip(tokens, tools, strict=True)]
    if loop.rollout.stream:
        done, _ = done_s(given, decode, np.concatenate(tokens), np.concatenate(tools))
        ended_s, rolled = 0.0, list[tuple[float, float, Floats]]()
        for end_s, alone, t in zip(done.reshape(drawn, -1).max(axis=1).tolist(), every, tokens, strict=True):
            took_s = min(max(end_s - ended_s, 0.0), float(alone.max()))
            rolled.append((took_s + more, 0.0, t))
            ended_s += took_s
        return rolled
    return [(float(e.max()) + more, float(e.max() - e.mean()), t) for e, t in zip(every, tokens, strict=True)]


def _evaluation_s(loop: Loop, decode: Decode, seed: int) -> float:
    """Rollouts of an evaluation, spread over the steps between two."""
    count, name = loop.evaluation.responses, f"post_training:{loop.name}:evaluation"
    if not loop.evaluation.every:
        return 0.0
    tokens, waits_s = lengths(loop.response, count, seed, name), tool_waits_s(loop, count, seed, name)
    return float(done_s(loop, decode, tokens, waits_s)[0].max()) / loop.evaluation.every


def decode_for(loop: Loop, scenario: Scenario) -> Decode:
    """The time of an iteration on the cluster's GPUs."""
    model = scenario.workload.models[loop.model]
    group, profile = nodes_of(scenario), load_profile(scenario.cluster.hardware)
    accelerator, spec = profile.accelerator(group.accelerator), section(model)[0]
    machine = accelerator_of(accelerator, model.precision, link_bytes_per_s(group, profile), spec)
    found = decode_of(spec.shape(), machine, loop)
    return found._replace(**{n: t / group.speed for n, t in found._asdict().items() if n.endswith("_s")})


def _work_s(loop: Loop, model: Model, scenario: Scenario, tokens: Floats, steps: int) -> tuple[float, float]:
    """(training on, one forward pass over) the responses of a step; tokens (n,): of all drawn ones, with prompts.

    Responses are packed into the micro-batches that the model states; attention costs as much as sequences of the
    mean length of a token's own.
    """
    spec, bound = section(model)
    group, profile = nodes_of(scenario), load_profile(scenario.cluster.hardware)
    accelerator, shape = profile.accelerator(group.accelerator), spec.shape()
    own = float((tokens**2).sum() / tokens.sum())
    packed = max(float(shape.sequence * bound.layout.micro_batch), own)
    beside = max(1, round(packed / own))
    each = bound.layout.cp * max(1, round(packed / beside / bound.layout.cp))
    data, rest = divmod(loop.trainer_gpus, bound.layout.replica_gpus)
    if rest or not data:
        size = bound.layout.replica_gpus
        raise ValueError(f"{loop.trainer_gpus} GPUs that train are not a multiple of {size} (tp x cp x pp)")
    filled = float(tokens.sum()) / steps / loop.updates / (data * beside * each)
    passes = max(1, math.ceil(filled))
    plan = plan_of(model, accelerator, link_bytes_per_s(group, profile), data, passes)
    layout = replace(plan.layout, micro_batch=beside, global_batch=data * passes * beside)
    plan = replace(plan, shape=replace(shape, sequence=each), layout=layout)
    layout.check(plan.shape)
    times = step_time(plan, stack_in_force(model))
    longer = loop.longer or LONGER["experts" if shape.experts else "dense"]
    held = shape.parameters / bound.layout.tp / bound.layout.pp / plan.accelerator.memory_bytes_per_s
    full = longer * bound.factor / group.speed
    trained_s = float(times.total) - _saved_s(loop, times, held * passes)
    return full * loop.updates * trained_s, full * loop.updates * _forward_s(times)


def _forward_s(t: StepEstimate) -> float:
    """The forward pass of a step: a third of what has a backward twice as long, half of the exchanges inside."""
    third = t.products + t.elementwise + t.host + t.head + t.context + t.bubble
    return float(third / 3.0 + t.attention / 3.5 + (t.tensor + t.expert + t.send) / 2.0)


def _saved_s(loop: Loop, t: StepEstimate, read_s: float) -> float:
    """What adapters save: gradients of frozen weights, their exchange and update. QLoRA decodes its weights for each
    of two passes, reading and writing them; read_s: of one byte of each weight, over all micro-batches."""
    if loop.adapter == "none":
        return 0.0
    decoded_s = 2.0 * (NF4 + HALF) * read_s if loop.adapter == "qlora" else 0.0
    return float((t.products + t.head) / 3.0 + t.exchange + t.optimizer) - decoded_s


def _handover_s(loop: Loop, model: Model, scenario: Scenario) -> float:
    if not loop.generates:
        return 0.0
    group = nodes_of(scenario)
    nodes = math.ceil(loop.trainer_gpus / group.gpus)
    rate = loop.handover.rate if loop.colocated else min(loop.handover.rate, nodes * group.network)
    share = 1.0 if loop.adapter == "none" else 0.01  # adapters of rank 16 to 64 have about 1 % of the weights
    return loop.handover.fixed + share * 2.0 * (model.parameters or 0.0) / rate


def parts(loop: Loop, p: Phases) -> StepParts:
    """Mean parts of a step, and the time of all steps, event by event.

    A batch is rolled out once the replicas are free and have the weights of the training `behind` + 1 steps before, and
    no sooner than its longest response;
    it is trained on once the trainers are free. Replicas that are ahead stop for each handover, too.
    """
    count, replicas_s, ended = loop.steps, 0.0, np.zeros(loop.steps)
    trainers_s = 0.0
    for step in range(count):
        first = step - 1 - loop.behind
        k, weights_s = step % p.rollout_s.size, float(ended[first]) if first >= 0 else 0.0
        stopped_s = p.handover_s if first >= 0 < loop.behind else 0.0
        rolled_s = max(replicas_s, weights_s) + float(p.rollout_s[k])
        replicas_s = max(rolled_s, weights_s + float(p.longest_s[k])) + stopped_s
        trainers_s = max(trainers_s, replicas_s) + p.trainer_s
        ended[step] = trainers_s
    warm = min(count - 1, 2 * loop.behind)  # until the pipeline is full
    step_s = float((ended[-1] - (ended[warm - 1] if warm else 0.0)) / (count - warm))
    rolled = p.rollout_s[np.arange(warm, count) % p.rollout_s.size]
    rollout_s = float(rolled.mean())
    least_s = 1e-9 * step_s  # what rounding leaves
    replicas_wait_s, trainers_wait_s = (
        wait if wait > least_s else 0.0 for wait in (step_s - rollout_s - p.handover_s, step_s - p.trainer_s)
    )
    replicas_wait_s = replicas_wait_s if loop.generates else 0.0
    tail_s = float(p.tail_s.mean())
    idle_s = loop.rollout_gpus * tail_s
    if loop.colocated:
        replicas_wait_s, trainers_wait_s = p.trainer_s - p.handover_s, rollout_s
    else:
        idle_s += loop.rollout_gpus * replicas_wait_s + loop.trainer_gpus * trainers_wait_s
    return StepParts(
        step_s,
        rollout_s,
        p.scoring_s,
        p.training_s,
        p.handover_s,
        p.other_s,
        replicas_wait_s,
        trainers_wait_s,
        tail_s,
        float(p.tokens.mean()),
        float(ended[-1]),
        idle_s / (loop.gpus * step_s),
    )
