"""The command line: `equipoise run | compare | list | validate | schema | doctor | ...`.

Data goes to stdout, progress and messages to stderr; `equipoise.exit_codes` names the exit codes. Large modules are
imported only by the commands that need them.
"""

from __future__ import annotations

import errno
import gc
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from equipoise.base.version import __version__
from equipoise.exit_codes import FAILURE, INTERRUPTED, OK, TERMINATED, WRONG_INPUT
from equipoise.options import CommandState
from equipoise.study.signals import heard_inside, terminable
from equipoise.study.terminal import printable

COMMANDS = {
    "run": ("runs.run", "run", "Simulate a scenario under one policy."),
    "compare": ("runs.compare", "compare", "Simulate several policies on the same seeds and compare them."),
    "sweep": ("runs.sweep", "sweep", "Run a sweep file; resumes by itself."),
    "bench": ("runs.bench", "bench", "Rank policies on the public benchmark."),
    "watch": ("runs.watch", "watch", "Show how far a sweep has come, and its first results."),
    "query": ("runs.query", "query", "Query results with SQL."),
    "calibrate": ("hardware.calibrate", "calibrate", "Measure this machine and fit a hardware profile."),
    "predict": ("hardware.predict", "predict", "Predict a PyTorch training step on a GPU that is not here."),
    "export": ("live.export", "export", "Write a policy as a file for a live training job."),
    "schedule": ("live.schedule", "schedule", "Let a policy schedule the jobs of a running Slurm."),
    "twin": ("live.twin", "twin", "Compare a live run with its simulation, decision by decision."),
    "replay": ("live.replay", "replay", "Replay recorded steps: cost of stragglers, what-if analysis."),
    "ranks": ("live.ranks", "ranks", "Find which rank of a live run is slow, and why."),
    "size": ("questions.size", "size", "Find the fewest or cheapest nodes that meet a target."),
    "fit": ("questions.fit", "fit", "Check whether a large model fits into memory, and what would make it fit."),
    "post-train": ("questions.post_train", "post_train", "Split GPUs between rollouts and training of a model."),
    "limits": ("questions.limits", "limits", "Find what limits each job, and what would help most."),
    "explain": ("questions.explain", "explain", "Explain why a job waited, or what each stage did at a given time."),
    "tune": ("questions.tune", "tune", "Search for the best parameters of a policy."),
    "sensitivity": ("questions.sensitivity", "sensitivity", "Find which values of a scenario change the result most."),
    "rerun": ("runs.rerun", "rerun", "Make a recorded run again; names inputs that changed."),
    "diff": ("runs.diff", "diff", "Show what differs between two runs."),
    "report": ("runs.report", "report", "Write results as one HTML file, or as figures for papers."),
    "timeline": ("runs.report", "timeline", "Write a run's timeline for Perfetto."),
    "validate-against": ("questions.validation", "validate_against", "Compare predictions with public measurements."),
    "init": ("scenario.init", "init", "Write a commented first scenario, from five answers or options."),
    "validate": ("scenario.validate", "validate", "Check scenarios, sweeps and hardware profiles."),
    "import": ("scenario.import_", "import_", "Write a scenario from a site's own files."),
    "check": ("scenario.check", "check", "Find what is missing in a job trace, and how that affects results."),
    "check-stage": ("scenario.check_stage", "check_stage", "Test a stage against the contract, rule by rule."),
    "list": ("scenario.listing", "list_", "List stages, hardware profiles and scenarios."),
    "schema": ("scenario.validate", "schema", "Print the JSON schema of scenario files."),
    "doctor": ("hardware.doctor", "doctor", "Show versions, kernel cache, processors and GPUs."),
}
"""Module of `equipoise.commands`, function and one line for the overview, by name."""


class LazyGroup(click.Group):
    """Imports the module of a command when the command is called, not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command of that name, loaded now."""
        if name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[name]
        command = getattr(importlib.import_module(f"equipoise.commands.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Resolve a command as click does, with a suggestion for an unknown name."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            close = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(COMMANDS)}"
            raise click.UsageError(f"unknown command {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Format the command overview from the table, without importing commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, invoke_without_command=True)
@click.version_option(__version__, prog_name="equipoise")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Simulate, calibrate and deploy scheduling policies for GPU training clusters."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(WRONG_INPUT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (default: the process's arguments); returns the exit code."""
    state = CommandState()
    gc.set_threshold(50_000, 20, 20)  # with Python's own, a fifth of a short command is spent on looking for cycles
    _open_closed_streams()
    with terminable() as terminated:
        code = _run(arguments, state)
    if terminated() and code == INTERRUPTED:
        _say("ended by SIGTERM")
        return TERMINATED
    return code


def _run(arguments: Sequence[str] | None, state: CommandState) -> int:
    try:
        code = cli.main(args=arguments, prog_name="equipoise", standalone_mode=False, obj=state)
        sys.stdout.flush()
        return code if isinstance(code, int) else OK
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        _say(error.format_message(), usage=error)
        return error.exit_code  # 2 for wrong usage
    except (KeyboardInterrupt, click.Abort):
        return _interrupted()
    except BrokenPipeError:
        # The reader of stdout has exited (`| head`); Python must not report this again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except Exception as error:
        if heard_inside(error):
            return _interrupted()
        if state.debug:
            raise
        return _report(error)


def _interrupted() -> int:
    """Run with `-m`, Python exits by SIGINT, whatever the exit code, if Ctrl-C arrived while C code called `exec`.

    Some modules do that on import. Another `exec` that completes clears this state.
    """
    import ctypes

    ctypes.pythonapi.PyRun_SimpleString(b"")
    print("equipoise: interrupted", file=sys.stderr)
    return INTERRUPTED


def _open_closed_streams() -> None:
    """Reopen streams that were closed before the start (`>&-`), so that no other file gets their numbers."""
    closed = [name for name in ("stdout", "stderr") if getattr(sys, name) is None]
    for name in closed:
        setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (open until the end)
    if "stdout" in closed:
        _say("stdout is closed, so results are not printed")


def _report(error: Exception) -> int:
    """Print an error without its traceback and return its exit code (wrong input or failure)."""
    from equipoise.policies.registry import PolicyError
    from equipoise.sim.scenario.tree import InputError

    if isinstance(error, InputError):
        print(printable("\n".join(error.lines)), file=sys.stderr)
        return WRONG_INPUT
    if isinstance(error, PolicyError):
        _say(str(error))
        return WRONG_INPUT
    if type(error).__module__ in ("duckdb", "_duckdb"):  # a results file is damaged
        _say(" ".join(str(error).partition("LINE 1:")[0].split()))
        return WRONG_INPUT
    if isinstance(error, OSError) and error.strerror:  # disk full, no permission: not a bug in this program
        gone = error.errno == errno.ENOENT and error.filename is None
        name = "the working directory" if gone else str(error.filename or "stdout")
        if error.errno == errno.ENAMETOOLONG:
            _say(f"{name[:60]}...: {error.strerror}: {max(map(len, name.split('/')))} characters between slashes")
            return WRONG_INPUT
        _say(f"{name}: {error.strerror}")
        return FAILURE
    known = type(error).__module__.split(".")[0] == "equipoise"
    text = " ".join(str(error).split()) or "no message"
    _say(text if known else f"{type(error).__name__}: {text} (--debug shows the traceback)")
    return FAILURE


def _say(text: str, usage: click.ClickException | None = None) -> None:
    context = usage.ctx if isinstance(usage, click.UsageError) else None
    if context is not None:
        print(f"{context.get_usage()}\nTry '{context.command_path} --help' for help.", file=sys.stderr)
    print(f"equipoise: {printable(text)}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
