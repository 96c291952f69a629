"""How sure a predicted step of post-training is: published runs that the constants were not fitted to.

The interval is that of `sim.llm.certainty`: Student's t on log(measured / predicted) for a family to come, of dense
models or of those with experts, every family of the same weight. Dense models are predicted by constants of the other
dense ones. The ratios are made by `tests/features/post_training/runs.py`, and tested.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from equipoise.sim.features.post_training.section import Loop, nodes_of
from equipoise.sim.llm.certainty import PublishedRun, Spread, StepCertainty, gpu_name, spread_of
from equipoise.sim.scenario.model import Scenario

_RUNS = """
Llama 3.1 8B        | llama3-8b  | dense   | H100   |    8 |   112 | 0.979 | NVIDIA NeMo-RL 0.3
Llama 3.1 70B       | llama3-70b | dense   | H100   |   64 |   147 | 1.036 | NVIDIA NeMo-RL 0.3
Qwen3 32B           | qwen3-32b  | dense   | H100   |   64 |   213 | 0.925 | NVIDIA NeMo-RL 0.3
Llama 3.1 8B        | llama3-8b  | dense   | H100   |    8 |   116 | 1.010 | NVIDIA-NeMo/RL issue 959, another site
Llama 3.1 70B       | llama3-70b | dense   | H100   |   64 |   178 | 1.275 | NVIDIA-NeMo/RL issue 959, another site
Llama 3.1 8B        | llama3-8b  | dense   | H100   |   16 |  97.7 | 1.087 | NVIDIA NeMo-RL 0.4
Llama 3.1 8B, apart | llama3-8b  | dense   | H100   |   16 |  74.6 | 0.992 | NVIDIA NeMo-RL 0.4
Qwen3 32B           | qwen3-32b  | dense   | H100   |   32 |   393 | 1.075 | NVIDIA NeMo-RL 0.4
Qwen3 32B, apart    | qwen3-32b  | dense   | H100   |   64 |   215 | 0.940 | NVIDIA NeMo-RL 0.4
Qwen3 30B           | qwen3-30b  | experts | H100   |   32 |   225 | 0.995 | NVIDIA NeMo-RL 0.4
Qwen3 30B, apart    | qwen3-30b  | experts | H100   |   32 |   244 | 1.005 | NVIDIA NeMo-RL 0.4
Qwen3 30B           | qwen3-30b  | experts | H100   |   32 |   192 | 0.803 | NVIDIA NeMo-RL 0.6
Qwen3 30B, apart    | qwen3-30b  | experts | H100   |   32 |   152 | 0.615 | NVIDIA NeMo-RL 0.6
Qwen3 235B          | qwen3-235b | experts | H100   |  128 |   506 | 1.352 | NVIDIA NeMo-RL 0.4
Qwen3 235B, apart   | qwen3-235b | experts | H100   |  256 |   241 | 0.711 | NVIDIA NeMo-RL 0.4
Qwen3 235B          | qwen3-235b | experts | H100   |  128 |   395 | 1.054 | NVIDIA NeMo-RL 0.6
Qwen3 235B          | qwen3-235b | experts | H100   |  256 |   312 | 1.037 | NVIDIA NeMo-RL 0.6
Qwen3 235B, apart   | qwen3-235b | experts | H100   |  256 |   231 | 0.681 | NVIDIA NeMo-RL 0.6
DeepSeek-V3         | deepseek   | experts | H100   |  256 |   154 | 1.053 | NVIDIA NeMo-RL 0.4
DeepSeek-V3, apart  | deepseek   | experts | H100   |  512 |  77.9 | 0.607 | NVIDIA NeMo-RL 0.4
DeepSeek-V3         | deepseek   | experts | H100   |  256 |   134 | 0.926 | NVIDIA NeMo-RL 0.6
DeepSeek-V3         | deepseek   | experts | H100   |  512 |   111 | 0.815 | NVIDIA NeMo-RL 0.6
DeepSeek-V3, apart  | deepseek   | experts | H100   |  512 |  64.1 | 0.502 | NVIDIA NeMo-RL 0.6
Qwen3 30B           | miles      | experts | MI300X |    8 | 388.5 | 1.559 | AMD and Miles, March 2026
"""
"""Model, family, dense or experts, GPU, GPUs, measured step (s), measured / predicted, source."""
ROLLOUT = Spread.between(0.85, 1.18)
"""Rollouts alone: four models by constants of the other three 0.91 to 1.06, Miles on MI300X 0.97."""
TRAINING = {"dense": Spread.between(0.75, 1.33), "experts": Spread.between(0.5, 2.0)}
"""Scoring with training: three dense models by constants of the other two 0.89 to 1.17; experts with Miles 1.6."""
OTHER_SOFTWARE = "AMD's Miles took 1.56 times as long as predicted"


@dataclass(frozen=True)
class PublishedLoop(PublishedRun):
    """A published run of post-training."""

    @property
    def group(self) -> tuple[str, str]:
        """Runs that share an interval."""
        return self.kind, "post-training"


@lru_cache(maxsize=1)
def published_loops() -> tuple[PublishedLoop, ...]:
    """The runs of the table."""
    rows = [[cell.strip() for cell in line.split("|")] for line in _RUNS.strip().splitlines()]
    return tuple(
        PublishedLoop(model, family, kind, gpu, int(gpus), float(step_s), float(ratio), source)
        for model, family, kind, gpu, gpus, step_s, ratio, source in rows
    )


@lru_cache(maxsize=2)
def _spread(kind: str) -> Spread:
    return spread_of(published_loops(), (kind, "post-training"))


def certainty_of(loop: Loop, scenario: Scenario) -> StepCertainty:
    """How sure the step of a loop is."""
    model = scenario.workload.models[loop.model]
    kind = "experts" if model.transformer is not None and model.transformer.shape().experts else "dense"
    runs = [run for run in published_loops() if run.kind == kind]
    gpu, size = gpu_name(nodes_of(scenario).accelerator), float(model.parameters or 1.0)
    outside = []
    if gpu not in {run.gpu for run in runs}:
        outside.append(f"GPUs other than {' and '.join(sorted({run.gpu for run in runs}))}")
    if not min(run.parameters for run in runs) / 2 <= size <= 2 * max(run.parameters for run in runs):
        outside.append(f"a model of {size / 1e9:.3g}B parameters")
    if loop.gpus > 4 * max(run.gpus for run in runs):
        outside.append(f"{loop.gpus:,} GPUs")
    if loop.algorithm != "grpo" or loop.critic or loop.reward:
        outside.append("steps other than GRPO with rewards by rule")
    if model.precision not in ("bf16", "fp16"):
        outside.append(f"precision {model.precision}")
    if loop.adapter != "none":
        outside.append("adapters")
    if loop.behind > 1:
        outside.append("more than one step behind")
    if loop.rollout.tool_calls:
        outside.append("tools")
    if loop.rollout.stream:
        outside.append("replicas that go on with the next step's responses")
    if loop.response.most > 16384:
        outside.append(f"responses of {loop.response.most:,} tokens")
    if loop.prompt_tokens > 16384:
        outside.append(f"prompts of {loop.prompt_tokens:,} tokens")
    nearest = min(
        runs, key=lambda run: math.log(run.parameters / size) ** 2 + math.log(run.gpus / loop.gpus) ** 2 / 4.0
    )
    families = len({run.family for run in runs})
    rests_on = f"{len(runs)} published runs of {families} families of {kind} models, "
    by = "each by constants of the others, all with NVIDIA NeMo-RL"
    rests_on += f"{by}; {OTHER_SOFTWARE}" if kind == "dense" else "by constants of one of them, Qwen3 30B"
    spread = _spread(kind)
    if outside:  # nothing public tells how much wider: as wide as the widest
        spread, rests_on = (_spread("experts"), "no published run is like it: the interval of models with experts")
    return StepCertainty(spread, rests_on, tuple(outside), nearest, group=(kind, "post-training"), gpu=gpu)


def errors(sure: StepCertainty, chances: int = 9) -> list[tuple[float, float]]:
    """(rollouts, training): equally likely factors on both, each by itself; outside of the fit both widest."""
    at = [2.0 * (k + 0.5) / chances - 1.0 for k in range(chances)]
    spreads = [TRAINING["experts"]] * 2 if sure.outside else [ROLLOUT, TRAINING[sure.group[0]]]
    one, other = ([s.interval(abs(c))[c > 0.0] for c in at] for s in spreads)
    return [(a, b) for a in one for b in other]
