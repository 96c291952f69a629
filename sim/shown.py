"""What results show of a feature: metrics, tables and lines as plain data; see `sim.world.feature`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from equipoise.policies.observation import Columns
from equipoise.sim.discover import parts


@dataclass(frozen=True)
class Metric:
    """A metric of a run, whose name ends with its unit: _s, _ratio, _usd, _j.

    after: the metric behind which it is shown; "": the one before. target: its name in targets, "" for none;
    also_called: another name of that. of_step: 1 in proportion to predicted steps, -1 in inverse proportion.
    main: whether short tables, of sizes and of several scenarios, have it.
    """

    name: str
    label: str
    after: str = ""
    more_is_better: bool = False
    target: str = ""
    also_called: str = ""
    of_step: int = 0
    main: bool = False


@dataclass(frozen=True)
class Over:
    """A quantity over time, for a chart: values (n,) hold from each edge (s, n + 1) to the next."""

    title: str
    name: str
    unit: str
    edges_s: NDArray[Any]
    values: NDArray[Any]


Tables = Mapping[str, Columns]


@dataclass(frozen=True)
class Shown:
    """What results show of one feature, as plain data."""

    heading: tuple[str, str, str] = ("", "", "")  # key, name and title of its section in a report
    metrics: tuple[Metric, ...] = ()
    tables: tuple[str, ...] = ()  # its tables of a run
    of_timeline: tuple[str, ...] = ()  # its tables of the timeline
    uses: Mapping[str, str] = field(default_factory=dict)  # what GPU time is used for beside jobs, with a text
    bars: tuple[str, str] | None = None  # a table of the timeline, and what its rows are, for a Gantt chart
    # metrics of a run, by its tables, its totals and the GPU time of the cluster (s)
    summary: Callable[[Tables, Mapping[str, float], float], dict[str, float]] = lambda *_: {}
    # rows of its table in a report, by title: texts, or (metric, value), whose name ends with the unit
    rows: Callable[[Tables], list[dict[str, Any]]] = lambda _: []
    over_time: Callable[[Tables], list[Over]] = lambda _: []  # what to draw over time
    lines: Callable[[Tables], Iterable[str]] = lambda _: ()  # lines about what policies saw of it


def all_shown() -> tuple[Shown, ...]:
    """Of every feature that is there."""
    return tuple(module.SHOWN for module in parts("shown") if isinstance(module.SHOWN, Shown))


@dataclass(frozen=True)
class Answered:
    """A feature's answer to a question of its own, as plain data. rows: of texts, the head first.

    along: what the picture's x axis shows, "" without one; lines: (x, y) of each line in it, y in seconds.
    """

    title: str
    sentences: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    remarks: tuple[str, ...]
    data: Mapping[str, Any]
    along: str = ""
    lines: Mapping[str, Mapping[float, float]] = field(default_factory=dict)
