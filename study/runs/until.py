"""Sequential stopping: seeds are added until an interval is narrow enough, or a maximum is reached.

Looking at the data again and again and stopping when it pleases makes ordinary intervals too narrow (Armitage,
McPherson and Rowe 1969). So the looks are few and planned, at numbers of seeds that grow by half each time, and
the error probability is spent on them in equal parts (Bonferroni's inequality; spending functions: Lan and
DeMets 1983): with K looks every interval has level 1 - 0.05 / K. All K then cover the truth together with at
least 95 %, so the one at which the sampling stops does, whatever made it stop.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from equipoise.sim.scenario.tree import InputError
from equipoise.sim.scenario.units import SHARE, format_share
from equipoise.study.report.text import LABELS
from equipoise.study.statistics import CONFIDENCE, Interval, mean_interval, paired_ratio

METRIC = "completion_mean_s"
FEWEST, MOST = 3, 100
GROWTH = 1.5
_ALLOWED = "write ci:SHARE[:METRIC[:ratio]], e.g. ci:2% or ci:1%:makespan_s:ratio"


@dataclass(frozen=True)
class Until:
    """When to stop adding seeds.

    share: largest half width of the interval relative to its middle, above 0 and below 1.
    metric: a name of `Run.summary`. of_ratio: the interval of the paired ratio to the first policy is meant,
    not that of the mean. first, most: seeds at the first and at the last look.
    """

    share: float
    metric: str = METRIC
    of_ratio: bool = False
    first: int = 5
    most: int = MOST

    def __post_init__(self) -> None:
        if not 0.0 < self.share < 1.0:
            raise InputError([f"--until: a half width of {format_share(self.share)}; allowed is 0 to 100 %"])
        if self.first < FEWEST:
            raise InputError([f"--until: begins with {self.first} seeds; at least {FEWEST} are needed"])
        if self.most < self.first:
            raise InputError(
                [f"--until: at most {self.most} seeds, but begins with {self.first}; raise --max-seeds"]
            )

    @property
    def looks(self) -> tuple[int, ...]:
        """Seeds at each look, ascending, from `first` to `most`."""
        found = [self.first]
        while found[-1] < self.most:
            found.append(min(self.most, math.ceil(GROWTH * found[-1])))
        return tuple(found)

    @property
    def level(self) -> float:
        """Level of the interval at each look, such that all of them together hold with 95 %."""
        return 1.0 - (1.0 - CONFIDENCE) / len(self.looks)

    @property
    def text(self) -> str:
        """The condition in words."""
        what = f"ratio of {self.metric} to the first policy" if self.of_ratio else self.metric
        return f"95 % interval of {what} within ±{format_share(self.share)}"

    def reached(self, values: Mapping[str, Sequence[float]]) -> float:
        """The widest relative half width over policies; infinite where there is no interval.

        values: results of `metric` by policy, the first policy first, paired by position.
        """
        names = list(values)
        chosen = names[1:] if self.of_ratio else names
        widths = [relative_half_width(self._interval(values[name], values[names[0]])) for name in chosen]
        return max(widths, default=0.0)

    def met(self, values: Mapping[str, Sequence[float]]) -> bool:
        """Whether the intervals of all policies are narrow enough."""
        return self.reached(values) <= self.share

    def _interval(self, values: Sequence[float], first: Sequence[float]) -> Interval:
        if self.of_ratio:
            return paired_ratio(values, first, self.level)
        return mean_interval(values, self.level)


def relative_half_width(interval: Interval) -> float:
    """Half width over the middle: 0 for no spread at all, infinite when unknown or around zero."""
    half = interval.half_width
    if math.isnan(half):
        return math.inf
    if half == 0.0:
        return 0.0
    return half / abs(interval.mean) if interval.mean else math.inf


def read_until(text: str, first: int, most: int = MOST) -> Until:
    """`ci:SHARE[:METRIC[:ratio]]` as a condition. Raises InputError with what is allowed."""
    kind, *parts = text.split(":")
    if kind.strip() != "ci" or not 1 <= len(parts) <= 3 or (len(parts) == 3 and parts[2].strip() != "ratio"):
        raise InputError([f"--until {text!r}: {_ALLOWED}"])
    try:
        share = SHARE.parse(parts[0].strip())
    except ValueError as error:
        raise InputError([f"--until {text!r}: {error}"]) from error
    until = Until(share, parts[1].strip() if len(parts) > 1 else METRIC, len(parts) == 3, first, most)
    check_metric(until, LABELS)
    return until


def check_policies(until: Until, policies: Sequence[str]) -> None:
    """Raises InputError when a ratio is asked for and there is nothing to compare with."""
    if until.of_ratio and len(policies) < 2:
        raise InputError(["--until: a ratio needs a second policy; leave out ':ratio', or name one more"])


def check_metric(until: Until, known: Iterable[str]) -> None:
    """Raises InputError when the metric is not one of `known`."""
    names = list(known)
    if until.metric not in names:
        raise InputError([f"--until: unknown metric {until.metric!r}; known: {', '.join(names)}"])
