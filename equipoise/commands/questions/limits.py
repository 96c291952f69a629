"""The command `limits`."""

from __future__ import annotations

from pathlib import Path

import click

from equipoise.commands.variants import Given, variant_options
from equipoise.exit_codes import OK


@click.command()
@variant_options
@click.option(
    "--try",
    "tried",
    multiple=True,
    metavar="POLICY",
    help="Another policy to try as a lever. Default: s1+s2+s3, s1+s2+s3+s4.",
)
@click.option("--all", "every", is_flag=True, help="Show every lever, also those that do not help.")
def limits(given: Given, tried: tuple[str, ...], every: bool) -> int:
    """Find what limits the jobs of SCENARIO, and what would help most.

    The limit (compute, memory, input, barrier, network, queue or faults) takes the largest part of a job's time; the
    levers are found by running the scenario with each of them on the same seeds: resources doubled, faults and noise
    removed, other policies.
    """
    from equipoise.study.questions.levers import POLICIES
    from equipoise.study.questions.limits import FILE
    from equipoise.study.questions.limits import limits as find

    with given.run_options() as options:
        found = find(
            Path(given.scenario),
            policy=given.policy,
            policies=tried or POLICIES,
            overrides=given.overrides,
            trace=given.trace,
            options=options,
        )
    given.tell(found.as_dict(), FILE, found.findings(every), found.notes)
    return OK
