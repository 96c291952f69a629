"""How sure a predicted step of a large model is: its 90 % interval, what lies outside the fit, the nearest measurement.

The interval comes from published runs of the same group (dense or experts, GPU generation) that the stack was not
fitted on: the mean of log(measured / predicted) with equal weight for each family of models, and Student's t for a new
family, with the pooled variance of all dense or of all expert runs (prediction interval of a new
observation: Montgomery, Design and Analysis of Experiments, chapter 2). Groups of fewer than three families take the
widest interval of all. The ratio of two plans has the spread of ratios of two published runs that differ as they do.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from statistics import NormalDist

from equipoise.sim.llm.quantities import ShardingPlan
from equipoise.sim.llm.shape import NARROW

FAR = 4
"""Times the largest fitted scale from which on a plan counts as outside."""
FEWEST = 3
"""Families that an interval needs."""
SHARE = 0.90
"""Of measurements, held by an interval."""
NORMAL = 1e6
"""Degrees of freedom of a Student's t that is a normal distribution."""


@dataclass(frozen=True)
class Spread:
    """Distribution of measured over predicted: (weight, mean of its logarithm, scale, degrees) of Student's t's."""

    parts: tuple[tuple[float, float, float, float], ...]

    @classmethod
    def between(cls, low: float, high: float) -> Spread:
        """The log-normal one whose interval is low to high."""
        mean, scale = math.log(low * high) / 2.0, math.log(high / low) / 2.0 / NormalDist().inv_cdf((1.0 + SHARE) / 2.0)
        return cls(((1.0, mean, scale, NORMAL),))

    def chance_below(self, ratio: float) -> float:
        """Chance that measured / predicted is at most `ratio`."""
        if ratio <= 0.0:
            return 0.0
        at = math.log(ratio)
        from scipy.special import stdtr  # takes a while to load, and not every run predicts a step

        found = (w * (float(stdtr(d, (at - m) / s)) if s > 0.0 else float(at >= m)) for w, m, s, d in self.parts)
        return math.fsum(found)

    def interval(self, share: float = SHARE) -> tuple[float, float]:
        """Factors of the prediction that hold `share` of measurements, as many below them as above."""
        if len(self.parts) == 1:
            _, mean, scale, degrees = self.parts[0]
            half = scale * _student_quantile(degrees, (1.0 + share) / 2.0)
            return math.exp(mean - half), math.exp(mean + half)
        return self._quantile((1.0 - share) / 2.0), self._quantile((1.0 + share) / 2.0)

    def _quantile(self, chance: float) -> float:
        far = [_student_quantile(d, 1e-4) * s for _, _, s, d in self.parts]
        low = min(m + f for (_, m, _, _), f in zip(self.parts, far, strict=True))
        high = max(m - f for (_, m, _, _), f in zip(self.parts, far, strict=True))
        for _ in range(60):
            middle = (low + high) / 2.0
            low, high = (middle, high) if self.chance_below(math.exp(middle)) < chance else (low, middle)
        return math.exp(high)

    @property
    def centre(self) -> float:
        """Mean of the logarithm."""
        return math.fsum(w * m for w, m, _, _ in self.parts)

    @property
    def scale(self) -> float:
        """Scale of the logarithm, all parts together."""
        return math.sqrt(math.fsum(w * (s * s + (m - self.centre) ** 2) for w, m, s, _ in self.parts))

    def with_stall(self, chance: float, longer: float) -> Spread:
        """Two-peaked: with this chance measurements are `longer` times as long."""
        if chance <= 0.0:
            return self
        stalled = [(w * chance, m + math.log(longer), s, d) for w, m, s, d in self.parts]
        return Spread((*((w * (1.0 - chance), m, s, d) for w, m, s, d in self.parts), *stalled))


def _student_quantile(degrees: float, chance: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(degrees, chance))


_RUNS = """
Megatron 7.5B       | megatron    | dense   | A100 |   128 | 3.696 | 1.041 | Narayanan et al. 2021, table 1
Megatron 39B        | megatron    | dense   | A100 |   512 | 14.45 | 0.999 | Narayanan et al. 2021, table 1
Megatron 530B       | megatron    | dense   | A100 |  2520 | 54.09 | 0.999 | Narayanan et al. 2021, table 1
GPT-3 175B          | gpt3        | dense   | A100 |  1024 | 31.47 | 1.094 | Narayanan et al. 2021, table 1
MT-NLG 530B         | mt-nlg      | dense   | A100 |  2240 | 60.1  | 1.271 | Smith et al. 2022, section 2.3
MT-NLG 530B         | mt-nlg      | dense   | A100 |  3360 | 44.4  | 1.324 | Smith et al. 2022, section 2.3
GPT-NeoX 20B        | neox        | dense   | A100 |    96 | 43.92 | 1.296 | Black et al. 2022
Llama 2 7B          | llama       | dense   | A100 |   256 | 5.436 | 1.359 | Touvron et al. 2023, GPU hours
GPT 175B            | gpt3        | dense   | A100 | 12288 | 8.57  | 1.197 | Jiang et al. 2024 (MegaScale), baseline
Llama 3.1 405B      | llama       | dense   | H100 |  8192 | 12.15 | 0.885 | Llama 3 paper 2024, table 4
Nemotron-4 340B     | nemotron    | dense   | H100 |  1536 | 10.3  | 1.132 | Nemotron-4 340B report 2024
Nemotron-4 15B      | nemotron    | dense   | H100 |  2304 | 0.64  | 1.161 | Nemotron-4 15B report 2024
Llama 3.1 8B, FSDP  | llama-fsdp  | dense   | H100 |     8 | 2.844 | 1.076 | torchtitan, docs/performance.md
Llama 3.1 8B, FSDP  | llama-fsdp  | dense   | H100 |   128 | 2.923 | 1.110 | torchtitan, docs/performance.md
Llama 3 70B, fp8    | llama       | dense   | H100 |    64 | 10.23 | 0.939 | NVIDIA NeMo 25.11, performance summary
Llama 3 8B, fp8     | llama3-8b   | dense   | B200 |     8 | 4.28  | 0.977 | NVIDIA NeMo 25.11, performance summary
Llama 3.1 405B, fp8 | llama3-405b | dense   | B200 |   128 | 6.197 | 0.973 | NVIDIA NeMo 25.11, performance summary
Llama 3 8B, fp8     | llama3-8b   | dense   | GB200 |    8 | 4.16  | 1.021 | NVIDIA NeMo 25.11, performance summary
Llama 3.1 405B      | llama3-405b | dense   | GB200 |  128 | 9.347 | 1.064 | NVIDIA dgxc-benchmarking
Nemotron-4 340B     | nemotron    | dense   | GB200 |  128 | 32.66 | 1.144 | NVIDIA dgxc-benchmarking
Mixtral 8x7B        | mixtral     | experts | H100 |    64 | 2.791 | 0.948 | Megatron Core, README of its experts
Mixtral 8x22B       | mixtral     | experts | H100 |   128 | 4.067 | 0.951 | Liu et al. 2025, MoE parallel folding
Grok-1 314B         | grok        | experts | H100 |   512 | 15.94 | 0.932 | NVIDIA dgxc-benchmarking
GPT-OSS 120B        | gpt-oss     | experts | H100 |    64 | 5.82  | 1.284 | NVIDIA Megatron-Bridge, performance summary
Qwen3 235B, fp8     | qwen3       | experts | H100 |   256 | 20.81 | 0.947 | NVIDIA Megatron-Bridge, performance summary
DeepSeek-V3, fp8    | deepseek    | experts | H800 |  2048 | 19.91 | 0.728 | DeepSeek-V3 report 2024, table 1
Qwen3 30B, fp8      | qwen3       | experts | B200 |     8 | 9.76  | 1.092 | NVIDIA Megatron-Bridge, performance summary
DeepSeek-V3, fp8    | deepseek    | experts | GB200 |  256 | 16.31 | 1.089 | NVIDIA Megatron-Bridge, performance summary
DeepSeek-V3         | deepseek    | experts | GB200 |  256 | 20.88 | 1.130 | NVIDIA Megatron-Bridge, performance summary
GPT-OSS 120B        | gpt-oss     | experts | GB200 |   64 | 5.16  | 1.498 | NVIDIA Megatron-Bridge, performance summary
Llama 3.1 405B, fp8 | llama3-405b | dense   | GB200 |  256 | 58.31 | 0.941 | NVIDIA Megatron-Bridge 26.06
Llama 3 70B, fp8    | llama3-70b  | dense   | GB200 |   64 | 7.758 | 0.884 | NVIDIA Megatron-Bridge 26.04
Llama 3.1 405B, fp8 | llama3-405b | dense   | GB300 |  256 | 46.9  | 0.918 | NVIDIA Megatron-Bridge 26.06
Llama 3 70B, fp8    | llama3-70b  | dense   | GB300 |   64 | 6.244 | 0.851 | NVIDIA Megatron-Bridge 26.04
DeepSeek-V3, fp8    | deepseek    | experts | B200 |   256 | 23.28 | 1.273 | NVIDIA Megatron-Bridge 26.04
DeepSeek-V3, fp8    | deepseek    | experts | B300 |   256 | 18.51 | 1.167 | NVIDIA Megatron-Bridge 26.06
DeepSeek-V3, fp8    | deepseek    | experts | GB200 |  256 | 13.34 | 1.102 | NVIDIA Megatron-Bridge 26.08
DeepSeek-V3, fp8    | deepseek    | experts | GB300 |  256 | 10.42 | 1.073 | NVIDIA Megatron-Bridge 26.08
GPT-OSS 120B        | gpt-oss     | experts | B200 |    64 | 6.038 | 0.879 | NVIDIA Megatron-Bridge 26.04
GPT-OSS 120B, fp8   | gpt-oss     | experts | GB200 |   64 | 2.857 | 1.269 | NVIDIA Megatron-Bridge 26.08
GPT-OSS 120B, fp8   | gpt-oss     | experts | GB300 |   64 | 2.481 | 1.311 | NVIDIA Megatron-Bridge 26.08
Qwen3 235B, fp8     | qwen3       | experts | B200 |   256 | 34.71 | 1.417 | NVIDIA Megatron-Bridge 26.04
Qwen3 235B, fp8     | qwen3       | experts | GB200 |  256 | 18.0  | 1.007 | NVIDIA Megatron-Bridge 26.08
Qwen3 235B, fp8     | qwen3       | experts | GB300 |  256 | 14.87 | 1.016 | NVIDIA Megatron-Bridge 26.08
Qwen3 30B, fp8      | qwen3       | experts | GB200 |    8 | 6.564 | 1.027 | NVIDIA Megatron-Bridge 26.08
Qwen3 30B, fp8      | qwen3       | experts | GB300 |    8 | 5.885 | 1.133 | NVIDIA Megatron-Bridge 26.08
"""
"""Model, family, dense or experts, GPU, GPUs, measured step (s), measured / predicted, source. The ratios are fitted:
`equipoise validate-against published --data DATA --rows FILE`. One run of unpublished size is left out."""

DEEPSEEK_V3 = 671e9
"""Parameters of the one model whose name does not state them."""
AMPERE_HOPPER, BLACKWELL = "A100 and H100", "Blackwell"
GENERATIONS = {
    **dict.fromkeys(("A100", "H100", "H200", "H800"), AMPERE_HOPPER),
    **dict.fromkeys(("B200", "B300", "GB200", "GB300"), BLACKWELL),
}
CALIBRATED = {
    ("dense", AMPERE_HOPPER): Spread.between(0.96, 1.04),
    ("dense", BLACKWELL): Spread.between(0.90, 1.11),
    ("experts", BLACKWELL): Spread.between(0.76, 1.32),
}
"""Of a plan one step of which was measured, by group: dense on A100 and H100 at larger scales of that step; on
Blackwell under other releases of its software (pooled by family, Student's t; docs/validation-public.md). Other groups
have the widest of these."""
LARGEST = {
    "fsdp-eager/A100": 128,
    "fsdp-eager/H100": 512,
    "fsdp-compiled/A100": 128,
    "fsdp-compiled/H100": 512,
    "megatron/A100": 512,
    "megatron-core/H100": 576,
    "nanotron/H100": 64,
    "megatron-deepspeed/A100": 512,
}
"""Most GPUs of a step that a stack was fitted to."""


@dataclass(frozen=True)
class PublishedRun:
    """A published run: its measured step, and how much longer that was than the predicted one."""

    model: str
    family: str
    kind: str
    gpu: str
    gpus: int
    step_s: float
    ratio: float
    source: str

    @property
    def group(self) -> tuple[str, str]:
        """Runs that share an interval."""
        return self.kind, GENERATIONS[self.gpu]

    @property
    def parameters(self) -> float:
        """Parameters that its name states; of eight experts those of one times eight."""
        found = re.search(r"(?:(\d+)x)?(\d+(?:\.\d+)?)B", self.model)
        return 1e9 * float(found[2]) * int(found[1] or 1) if found else DEEPSEEK_V3

    def __str__(self) -> str:
        said = f"{self.step_s:.3g} s measured, {self.step_s / self.ratio:.3g} s predicted"
        return f"{self.model} on {self.gpus:,} {self.gpu}: {said} ({self.source})"


@dataclass(frozen=True)
class StepCertainty:
    """spread: of measured over predicted; rests_on: in words; outside: what the fit has not seen.

    nearest: None where no run was published. model, layout: what it is of, equal where they are alike; group: of runs.
    """

    spread: Spread
    rests_on: str
    outside: tuple[str, ...] = ()
    nearest: PublishedRun | None = None
    model: object = None
    group: tuple[str, str] = ("", "")
    gpu: str = ""
    layout: object = None
    calibrated: bool = False

    @property
    def low(self) -> float:
        """Lower end of the interval, as a factor of the prediction."""
        return self.spread.interval()[0]

    @property
    def high(self) -> float:
        """Its upper end."""
        return self.spread.interval()[1]

    def lines(self) -> Iterator[str]:
        """What the interval rests on, what is outside the fit, and the nearest measurement, one line each."""
        low, high = self.spread.interval()
        yield f"{low:.2f} to {high:.2f} times the prediction: {self.rests_on}"
        if self.outside:
            yield f"outside the fit: {'; '.join(self.outside)}"
        if self.nearest is not None:
            yield f"nearest measurement: {self.nearest}"


@lru_cache(maxsize=1)
def published_runs() -> tuple[PublishedRun, ...]:
    """The published runs, in the order of the table."""
    rows = [[cell.strip() for cell in line.split("|")] for line in _RUNS.strip().splitlines()]
    return tuple(
        PublishedRun(model, family, kind, gpu, int(gpus), float(step_s), float(ratio), source)
        for model, family, kind, gpu, gpus, step_s, ratio, source in rows
    )


def spread_of(runs: Sequence[PublishedRun], group: tuple[str, str]) -> Spread:
    """The spread of the runs of a family to come in `group`.

    Raises ValueError where the group, or the spread of its kind, has too few families.
    """
    squares, degrees = 0.0, 0
    for other in sorted({run.group for run in runs if run.kind == group[0]}):
        _, found, families = _around([run for run in runs if run.group == other])
        squares, degrees = squares + found, degrees + families - 1
    mean, _, families = _around([run for run in runs if run.group == group])
    if degrees < 1 or families < 1:
        raise ValueError("runs: too few families for an interval")
    return Spread(((1.0, mean, math.sqrt(squares / degrees * (1.0 + 1.0 / families)), float(degrees)),))


def _around(runs: Sequence[PublishedRun]) -> tuple[float, float, int]:
    """Mean log ratio, sum of squares around it and number of families; each family has the weight 1."""
    counts = Counter(run.family for run in runs)
    weights = [1.0 / counts[run.family] for run in runs]
    logs = [math.log(run.ratio) for run in runs]
    mean = math.fsum(w * x for w, x in zip(weights, logs, strict=True)) / max(1, len(counts))
    return mean, math.fsum(w * (x - mean) ** 2 for w, x in zip(weights, logs, strict=True)), len(counts)


@lru_cache(maxsize=1)
def widest() -> Spread:
    """From the lowest to the highest end of all groups."""
    ends = [spread_of(published_runs(), group).interval() for group in {run.group for run in published_runs()}]
    return Spread.between(min(low for low, _ in ends), max(high for _, high in ends))


def ratio_of(one: StepCertainty, other: StepCertainty) -> Spread:
    """The spread of measured over predicted of the ratio of `other`'s step to that of `one`.

    What both are off by cancels: pairs of published runs that are of one family, and on one GPU, as these two are.
    Plans without such pairs are off independently of each other.
    """
    centre = other.spread.centre - one.spread.centre
    if one == other:
        return Spread(((1.0, 0.0, 0.0, NORMAL),))
    alone = Spread(((1.0, centre, math.hypot(one.spread.scale, other.spread.scale), NORMAL),))
    if one.group[0] != other.group[0] or one.calibrated or other.calibrated:
        return alone
    pairs = _pairs(one.group[0], one.model == other.model, one.gpu == other.gpu)
    if len(pairs) < FEWEST:
        return alone
    paired = Spread(((1.0, centre, math.sqrt(math.fsum(pairs) / len(pairs)), float(len(pairs) - 1)),))
    return min(paired, alone, key=lambda spread: spread.interval()[1] / spread.interval()[0])


@lru_cache(maxsize=16)
def _pairs(kind: str, same: bool, gpu: bool) -> tuple[float, ...]:
    """Mean square of the log ratio of two runs, of each pair of families that is of one family, on one GPU, or not."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    runs = [run for run in published_runs() if run.kind == kind]
    for a, b in combinations(runs, 2):
        if (a.family == b.family) == same and (a.gpu == b.gpu) == gpu:
            off = math.log(a.ratio / b.ratio) - (_mean(a.group) - _mean(b.group))
            found[a.family, b.family].append(off * off)
    return tuple(math.fsum(squares) / len(squares) for squares in found.values())


@lru_cache(maxsize=16)
def _mean(group: tuple[str, str]) -> float:
    return _around([run for run in published_runs() if run.group == group])[0]


def gpu_name(accelerator: str) -> str:
    """The GPU of an accelerator's name: "H100" of h100_sxm and of nvidia_h100_80gb_hbm3; "" for an unknown one."""
    words = re.split(r"[^a-z0-9]+", accelerator.lower())
    return next((word.upper() for word in words if word.upper() in GENERATIONS), "")


def certainty(plan: ShardingPlan, accelerator: str, stack: str, *, measured_on: str) -> StepCertainty:
    """How sure a step is; stack: its name, "" for a file; measured_on: accelerator of a measured step, "" without."""
    kind = "experts" if plan.shape.experts else "dense"
    gpu = gpu_name(accelerator)
    group = (kind, GENERATIONS.get(gpu, ""))
    alike = [run for run in published_runs() if run.group == group]
    families = len({run.family for run in alike})
    if measured_on:
        spread, rests_on = _by_measured_step(group, gpu or accelerator, gpu_name(measured_on) or measured_on)
    elif families >= FEWEST:
        spread = spread_of(published_runs(), group)
        rests_on = f"{len(alike)} published runs of {families} families: {kind}, {group[1]}"
    else:
        spread = widest()
        rests_on = f"no published runs of {kind} models on {accelerator}: the widest interval of all groups"
    outside, nearest = tuple(_outside(plan, gpu or accelerator, stack)), _nearest(plan, kind, gpu)
    return StepCertainty(
        spread, rests_on, outside, nearest, plan.shape, group, gpu or accelerator, plan.layout, bool(measured_on)
    )


def _by_measured_step(group: tuple[str, str], gpu: str, measured_on: str) -> tuple[Spread, str]:
    """The spread of a model's steps when one was measured, and what it rests on.

    On another GPU it is that of runs of one family on two GPUs, of fewer than three families the widest of all groups.
    """
    if gpu == measured_on:
        return CALIBRATED.get(group, CALIBRATED["experts", BLACKWELL]), f"one measured step of this model on {gpu}"
    elsewhere = (group[0], GENERATIONS.get(measured_on, ""))
    groups = {run.group for run in published_runs()}
    pairs = _pairs(group[0], True, False) if {group, elsewhere} <= groups else ()
    text = f"a step measured on {measured_on}, not on {gpu}"
    if len(pairs) < FEWEST:
        return widest(), f"{text}: the widest interval of all groups"
    centre, scale = _mean(group) - _mean(elsewhere), math.sqrt(math.fsum(pairs) / len(pairs))
    text += f"; {len(pairs)} families of published runs on two GPUs"
    return Spread(((1.0, centre, scale, float(len(pairs) - 1)),)), text


def together(found: Iterable[StepCertainty]) -> StepCertainty:
    """The one that takes the place of several: from the lowest to the highest end. Raises ValueError without one."""
    each = list(dict.fromkeys(found))
    if not each:
        raise ValueError("certainty: at least one is needed")
    if len(each) == 1:
        return each[0]
    ends = [one.spread.interval() for one in each]
    first = max(each, key=lambda one: one.high / one.low)
    return replace(first, spread=Spread.between(min(low for low, _ in ends), max(high for _, high in ends)))


def _outside(plan: ShardingPlan, gpu: str, stack: str) -> list[str]:
    """What the stack was not fitted to, in a few words each."""
    found, fitted = [], stack.rpartition("/")[2]
    if fitted and gpu != fitted:
        found.append(f"{gpu} timed by the shares of {fitted}")
    if plan.shape.experts:
        found.append("experts: the stack was fitted to dense models")
    if plan.layout.gpus > FAR * LARGEST.get(stack, plan.layout.gpus):
        found.append(f"{plan.layout.gpus:,} GPUs: fitted to at most {LARGEST[stack]}")
    if plan.layout.precision in NARROW and stack and not stack.startswith("megatron-core"):
        found.append(f"{plan.layout.precision}: the stack was fitted to 16-bit products")
    return found


def _nearest(plan: ShardingPlan, kind: str, gpu: str) -> PublishedRun:
    """The run that is nearest by kind, GPU, and numbers of parameters and of GPUs."""

    def distance(run: PublishedRun) -> tuple[bool, bool, bool, float]:
        far = abs(math.log(run.gpus / plan.layout.gpus)) + abs(math.log(run.parameters / plan.shape.parameters))
        return run.kind != kind, GENERATIONS[run.gpu] != GENERATIONS.get(gpu, ""), run.gpu != gpu, far

    return min(published_runs(), key=distance)
