"""Published runs of post-training: what constants were fitted to, and what they are tested against."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from equipoise.sim.features.post_training.phases import Phases, parts, phases
from equipoise.sim.features.post_training.section import loops_of
from equipoise.sim.loading.file import from_mapping
from equipoise.sim.scenario.model import Scenario

BLOG = "NVIDIA NeMo-RL 0.3 blog, table 1 (July 2025)"
V04, V06 = "NVIDIA NeMo-RL 0.4, performance summary", "NVIDIA NeMo-RL 0.6, performance summary"
RERUN = "another site's rerun of NeMo-RL 0.3, issue 959 of NVIDIA-NeMo/RL"
MILES = "AMD and Miles, 17 March 2026"


@dataclass(frozen=True)
class PublishedStep:
    """A run: model, GPUs, GPUs that roll out (0: all), of a replica, layout, responses, updates, tokens with prompts in
    the mean and at most, and what was measured: step, or also rollout, training, scoring, handover [s]."""

    config: str
    gpus: int
    rollout: int
    tensor: int
    layout: dict[str, int]
    responses: int
    updates: int
    mean: int
    most: int
    measured_s: tuple[float, ...]
    source: str
    accelerator: str = "h100_sxm"
    scored: bool = True

    def scenario(self) -> Scenario:
        """The run as a scenario; prompts of 150 tokens and a variation of 0.8 are taken, as neither was published."""
        behind = int(self.rollout > 0)
        loop: dict[str, Any] = {
            "model": "policy",
            "gpus": self.gpus,
            "steps": 12,
            "prompts": self.responses // 32,
            "samples": 32,
            "updates": self.updates,
            "response": {"mean": self.mean - 150, "most": self.most - 150},
            "rollout": {"gpus": self.rollout or None, "tensor": self.tensor},
            "behind": behind,
            "reference": self.scored,
        }
        shape = {"config": self.config, "sequence": self.most, "stack": "megatron-core/H100"}
        nodes = {
            "count": -(-self.gpus // 8),
            "gpus": 8,
            "accelerator": self.accelerator,
            "nic": "400 Gbit/s",
            "nics": 8,
        }
        return from_mapping(
            {
                "schema_version": 1,
                "name": "published",
                "cluster": {"nodes": [nodes]},
                "workload": {"models": {"policy": {"transformer": {**shape, "layout": {"zero": 1, **self.layout}}}}},
                "post_training": [loop],
            }
        )

    def predicted(self) -> tuple[float, Phases]:
        """The step [s], and its phases."""
        scenario = self.scenario()
        (loop,) = loops_of(scenario)
        found = phases(loop, scenario, scenario.seed)
        return parts(loop, found).step_s, found


FITTED = {
    "llama3-8b": PublishedStep("llama3-8b", 8, 0, 1, {}, 2048, 4, 945, 4096, (112, 58, 28, 18, 5), BLOG),
    "llama3-70b": PublishedStep(
        "llama3-70b", 64, 0, 4, {"tp": 4, "pp": 4}, 2048, 4, 548, 4096, (147, 84, 28, 18, 14), BLOG
    ),
    "qwen3-32b": PublishedStep(
        "qwen3-32b", 64, 0, 4, {"tp": 4, "pp": 2}, 2048, 4, 3433, 4096, (213, 96, 68, 40, 7), BLOG
    ),
    "qwen3-30b": PublishedStep(
        "qwen3-30b-a3b", 64, 0, 4, {"tp": 2, "ep": 8}, 2048, 4, 3401, 4096, (167, 78, 50, 23, 12), BLOG
    ),
}
"""By family. The blog states generated tokens, to which the prompt's 150 are added."""
_30B, _32B, _235B, _V3 = "qwen3-30b-a3b", "qwen3-32b", "qwen3-235b-a22b", "deepseek-v3"
_P = {"tp": 4, "pp": 4}
TESTED = [
    PublishedStep("llama3-8b", 8, 0, 1, {}, 2048, 4, 961, 4096, (116.0, 56.0, 27.0, 18.0, 8.0), RERUN),
    PublishedStep("llama3-70b", 64, 0, 4, _P, 2048, 4, 546, 4096, (178.0, 87.0, 31.0, 20.0, 26.0), RERUN),
    PublishedStep("llama3-8b", 16, 0, 1, {"pp": 2}, 2048, 4, 1060, 4096, (97.7,), V04),
    PublishedStep("llama3-8b", 16, 8, 1, {"pp": 2}, 2048, 4, 1129, 4096, (74.6,), V04),
    PublishedStep(_32B, 32, 0, 4, _P, 2048, 4, 3206, 4096, (393.0,), V04),
    PublishedStep(_32B, 64, 32, 4, _P, 2048, 4, 3207, 4096, (215.0,), V04),
    PublishedStep(_30B, 32, 0, 4, {"tp": 2, "ep": 8}, 2048, 4, 3154, 4096, (225.0,), V04),
    PublishedStep(_30B, 32, 16, 2, {"ep": 8, "pp": 2}, 2048, 4, 3158, 4096, (244.0,), V04),
    PublishedStep(_30B, 32, 0, 2, {"ep": 8}, 2048, 4, 3203, 4096, (192.0,), V06),
    PublishedStep(_30B, 32, 16, 2, {"ep": 8, "pp": 2}, 2048, 4, 3201, 4096, (152.0,), V06),
    PublishedStep(_235B, 128, 0, 16, {"tp": 2, "cp": 2, "ep": 16, "pp": 8}, 512, 1, 5671, 8192, (506.0,), V04),
    PublishedStep(_235B, 256, 128, 8, {"tp": 4, "ep": 16, "pp": 8}, 512, 1, 5691, 8192, (241.0,), V04),
    PublishedStep(_235B, 128, 0, 16, {"tp": 2, "cp": 2, "ep": 16, "pp": 8}, 512, 1, 5698, 8192, (395.0,), V06),
    PublishedStep(_235B, 256, 0, 16, {"tp": 2, "cp": 2, "ep": 16, "pp": 8}, 512, 1, 5713, 8192, (312.0,), V06),
    PublishedStep(_235B, 256, 128, 8, {"tp": 4, "ep": 16, "pp": 8}, 512, 1, 5721, 8192, (231.0,), V06),
    PublishedStep(_V3, 256, 0, 32, {"ep": 16, "pp": 16}, 512, 1, 745, 1536, (154.0,), V04),
    PublishedStep(_V3, 512, 256, 32, {"ep": 16, "pp": 16}, 512, 1, 744, 1536, (77.9,), V04),
    PublishedStep(_V3, 256, 0, 32, {"ep": 16, "pp": 16}, 512, 1, 701, 1536, (134.0,), V06),
    PublishedStep(_V3, 512, 0, 32, {"ep": 16, "pp": 16}, 512, 1, 697, 1536, (111.0,), V06),
    PublishedStep(_V3, 512, 256, 32, {"ep": 16, "pp": 16}, 512, 1, 710, 1536, (64.1,), V06),
    PublishedStep(_30B, 8, 0, 2, {"ep": 8}, 256, 1, 5880, 8342, (388.5, 152.79, 95.3), MILES, "mi300x", False),
]
"""Other releases and layouts, and another vendor's GPUs and software: nothing is fitted to these."""


def phase_ratios(run: PublishedStep) -> tuple[float, float]:
    """Measured over predicted of the rollouts, and of scoring with training."""
    p = run.predicted()[1]
    worked = run.measured_s[2] + run.measured_s[3]
    return run.measured_s[1] / float(p.rollout_s.mean()), worked / (p.training_s + p.scoring_s)


def without(family: str) -> tuple[float, float]:
    """How much constants fitted without a dense family differ from all: factors on rollouts, and on training."""
    found = {name: phase_ratios(run) for name, run in FITTED.items() if name != family}
    dense = [training for name, (_, training) in found.items() if name != "qwen3-30b"]
    return geometric_mean([rollout for rollout, _ in found.values()]), geometric_mean(dense)


def geometric_mean(values: list[float]) -> float:
    """Of ratios."""
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def step_ratio(run: PublishedStep) -> float:
    """Measured over predicted step, by constants without the run's family where it is one of the dense ones."""
    family, scenario = run.config, run.scenario()
    (loop,) = loops_of(scenario)
    found = run.predicted()[1]
    if family in FITTED:
        found = found.times(*without(family))
    return run.measured_s[0] / parts(loop, found).step_s


if __name__ == "__main__":
    for name, fitted in FITTED.items():
        print(f"{name} {phase_ratios(fitted)} without it {without(name)}")
    for tested in [*(run for run in FITTED.values() if run.config != _30B), *TESTED]:
        step_s, p = tested.predicted()
        print(
            f"{tested.config:16s} | {tested.gpus:4d} | {tested.rollout:4d} | {tested.measured_s[0]:6.1f} |"
            f" {step_ratio(tested):.3f} | {tested.source} | rollout {p.rollout_s.mean():.1f} training"
            f" {p.training_s:.1f} scoring {p.scoring_s:.1f} handover {p.handover_s:.1f} {tested.measured_s[1:]}"
        )
