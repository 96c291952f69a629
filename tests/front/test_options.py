"""Numbers as options: every command reads them strictly and within bounds."""

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from equipoise.cli import cli, main
from equipoise.commands.types import FloatRange, IntRange
from equipoise.study.questions.tune import ParameterRange, ParameterSearch, tune
from equipoise.study.runs.engine import EngineError
from equipoise.study.runs.make import How


def parameters(command: click.Command, above: click.Context | None, name: str) -> Iterator[tuple[str, click.Parameter]]:
    """Every option and argument of a command and of those below it, with the words that reach it."""
    context = click.Context(command, parent=above, info_name=name)
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            assert found is not None
            yield from parameters(found, context, f"{name} {below}".strip())
    yield from ((f"{name} {one.opts[0]}", one) for one in command.params)


def test_every_number_of_every_command_has_a_bound_and_is_read_strictly():
    numbers = [
        (where, one.type)
        for where, one in parameters(cli, None, "")
        if isinstance(one.type, (click.types.IntParamType, click.types.FloatParamType))
    ]
    assert len(numbers) > 20
    loose = [where for where, kind in numbers if not isinstance(kind, (IntRange, FloatRange)) or kind.min is None]
    assert loose == []


@pytest.mark.parametrize("option", ["--jobs", "--trials", "--seeds", "--fresh"])
@pytest.mark.parametrize("number", ["0", "-1", "1_0", "2.5", "nan"])
def test_tune_refuses_numbers_that_mean_nothing(option, number, capsys):
    assert main(["tune", "quickstart", "--vary", "policy.s4.slowdown=0:1", option, number]) == 2
    assert option in capsys.readouterr().err


def test_no_process_makes_no_run_and_says_so():
    with pytest.raises(EngineError, match="at least 1"):
        How(jobs=0)
    pytest.importorskip("optuna")
    with pytest.raises(EngineError, match="jobs: 0"):
        tune(
            ParameterSearch(
                Path("quickstart"), {"policy.s4.slowdown": ParameterRange(0, 1, False, "linear")}, "s4", jobs=0
            )
        )


def test_tune_says_how_far_it_is(capsys, monkeypatch):
    pytest.importorskip("optuna")
    monkeypatch.setattr("equipoise.options.LINE_EVERY_S", 0.0)
    line = ["tune", "quickstart", "--policy", "fifo", "--vary", "workload.jobs.0.global_batch=128,256", "--trials", "2"]
    assert main([*line, "--seeds", "1", "--fresh", "2"]) == 0
    told = capsys.readouterr().err
    assert "quickstart: 1/2 trials" in told
    assert "quickstart: 2/2 trials" in told
    assert "fresh seeds" in told
