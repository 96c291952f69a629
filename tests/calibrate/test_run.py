"""A session: rounds, saved as it goes, continued, never spoiled by one failure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from equipoise.calibrate.measure.measure import Measure, MeasureMissingError, Series
from equipoise.calibrate.run import ConditionsChangedError, SessionPlan, calibrate, plan_for
from equipoise.calibrate.samples import SampleWriter, read_samples
from equipoise.commands.hardware.calibrate import calibrate as command

CONDITIONS = {"device": "bench", "driver": "1"}


def plan(measures: list[Measure], now: Callable[[], dict[str, object]] = lambda: dict(CONDITIONS)) -> SessionPlan:
    return SessionPlan(measures, dict(CONDITIONS), {}, now, ("peer: needs 2 GPUs",))  # type: ignore[arg-type]


def writer(path: Path) -> SampleWriter:
    return SampleWriter(path / "s.jsonl", CONDITIONS, {})


def counted(kind: str, calls: list[str]) -> Measure:
    def run(budget_s: float) -> list[float]:
        calls.append(kind)
        return [budget_s, budget_s]

    return Measure(kind, {}, run)


def test_everything_is_measured_in_every_round_in_turn(tmp_path: Path) -> None:
    calls: list[str] = []
    outcome = calibrate(plan([counted("a", calls), counted("b", calls)]), writer(tmp_path), 3, 1.2)
    assert calls == ["a", "b"] * 3
    assert [(s.kind, s.round) for s in outcome.samples.samples][:3] == [("a", 0), ("b", 0), ("a", 1)]
    assert outcome.samples.samples[0].values == pytest.approx([0.2, 0.2])
    assert outcome.missing == ["peer: needs 2 GPUs"]
    assert read_samples(tmp_path / "s.jsonl").samples == outcome.samples.samples


def test_an_interrupted_session_keeps_what_it_has_and_goes_on(tmp_path: Path) -> None:
    calls: list[str] = []

    def interrupt(budget_s: float) -> list[float]:
        raise KeyboardInterrupt

    first = writer(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        calibrate(plan([counted("a", calls), Measure("b", {}, interrupt)]), first, 2, 1.0)
    first.close()
    outcome = calibrate(plan([counted("a", calls), counted("b", calls)]), writer(tmp_path), 2, 1.0)
    assert calls == ["a", "b", "a", "b"], "the first a is not measured again"
    assert len(outcome.samples.samples) == 4


def test_one_failure_costs_only_itself_and_is_named_once(tmp_path: Path) -> None:
    calls: list[str] = []

    def absent(budget_s: float) -> list[float]:
        calls.append("absent")
        raise MeasureMissingError("no such unit here")

    def broken(budget_s: float) -> list[float]:
        raise ZeroDivisionError("two\nlines")

    measures = [
        Measure("absent", {"size": 1}, absent),
        Measure("absent", {"size": 2}, absent),
        Measure("broken", {}, broken),
        counted("fine", calls),
    ]
    outcome = calibrate(plan(measures), writer(tmp_path), 2, 0.1)
    assert calls == ["absent", "absent", "fine", "fine"], "what is missing is not tried again"
    assert outcome.missing[1:] == ["absent 1 and 1 more: no such unit here", "broken: ZeroDivisionError: two lines"]
    assert [s.kind for s in outcome.samples.samples] == ["fine", "fine"]


def test_measurements_under_changed_conditions_are_not_used(tmp_path: Path) -> None:
    changed = plan([counted("a", [])], lambda: {**CONDITIONS, "driver": "2"})
    with pytest.raises(ConditionsChangedError, match="driver: '1' and '2'"):
        calibrate(changed, writer(tmp_path), 1, 0.1)


def test_series_are_measured_once_and_kept_in_columns(tmp_path: Path) -> None:
    series = Measure("heat", {}, lambda budget: Series({"time_s": [0.0, 1.0]}), once=True)
    outcome = calibrate(plan([series, counted("a", [])]), writer(tmp_path), 3, 0.3)
    (heat,) = outcome.samples.of("heat")
    assert heat.columns == {"time_s": [0.0, 1.0]}
    assert heat.values == ()


def test_a_machine_too_busy_to_finish_loses_rounds_not_measurements(tmp_path: Path) -> None:
    calls: list[str] = []

    def slow(budget_s: float) -> list[float]:
        time.sleep(0.2)
        return [1.0]

    outcome = calibrate(plan([Measure("slow", {}, slow), counted("a", calls)]), writer(tmp_path), 5, 0.1)
    assert calls == ["a"]
    assert outcome.missing[1].startswith("rounds from 2 on: time limit reached")


def test_a_session_that_is_complete_measures_nothing_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def fixed(kind: str, seconds: float, **parameters: float | str) -> Measure:
        def run(budget_s: float) -> list[float]:
            calls.append(kind)
            return [seconds] * 5

        return Measure(kind, parameters, run)

    @contextmanager
    def fake_plan(*arguments: object) -> Iterator[SessionPlan]:
        copy = fixed("copy", 1e-3, bytes=1e9, array_bytes=1e9)
        conditions = {**CONDITIONS, "memory_bytes": 1e9}
        yield SessionPlan([copy, fixed("fma", 1e-3, precision="fp32", flop=1e9)], conditions, {}, lambda: conditions)

    monkeypatch.setattr("equipoise.calibrate.run.plan_for", fake_plan)
    arguments = ["--device", "cpu", "--quick", "--out", str(tmp_path / "p.yaml")]
    first, second = (CliRunner().invoke(command, arguments) for _ in range(2))
    assert (first.exit_code, second.exit_code) == (0, 0), first.output + second.output
    assert len(calls) == 6
    assert "nothing new" not in first.stdout
    assert f"{tmp_path / 'p.samples.jsonl'} is complete" in second.stdout
    assert "memory bandwidth  1 T bytes/s" in second.stdout


def test_only_some_kinds_take_what_a_profile_needs_too() -> None:
    """A profile needs an arithmetic rate and a memory bandwidth."""
    for asked, more in (({"share"}, {"copy", "gemm"}), ({"add", "share"}, {"gemm"}), ({"copy", "gemm"}, set())):
        with plan_for("cpu", True, frozenset(asked)) as plan:
            assert {measure.kind for measure in plan.measures} == asked | more
