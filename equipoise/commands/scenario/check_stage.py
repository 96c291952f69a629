"""equipoise check-stage: check a stage, built in or installed, against the contract."""

from __future__ import annotations

import traceback
from typing import Any

import click

from equipoise.exit_codes import FAILURE
from equipoise.options import common, say
from equipoise.policies.blame import place_of
from equipoise.policies.registry import make_policy
from equipoise.study.stage_check import rules_for


@click.command("check-stage")
@click.argument("stage")
@common
@click.pass_context
def check_stage(ctx: click.Context, stage: str) -> None:
    """Test STAGE against every rule of the contract and list the broken ones.

    STAGE is a name, optionally with parameters: las or 'las(promote=0)'.
    """

    made, broken = make_policy(stage).stages[0], 0
    for rule in rules_for(made):
        problem = _problem(rule, made)
        name = rule.__name__.replace("_", " ")
        say(f"ok      {name}" if problem is None else f"broken  {name}: {problem}")
        broken += problem is not None
    if broken:
        ctx.exit(FAILURE)


def _problem(rule: Any, stage: Any) -> str | None:
    """The violation that a rule finds, in one line; None: no violation."""

    try:
        rule(stage)
    except AssertionError as error:
        return " ".join(str(error).split()) or traceback.extract_tb(error.__traceback__)[-1].line
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}{place_of(stage, error.__traceback__)}"
    return None
