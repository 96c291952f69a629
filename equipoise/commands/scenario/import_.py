"""import: write a scenario from the files that describe a site's cluster."""

from __future__ import annotations

from pathlib import Path

import click

from equipoise.base.files import write_whole
from equipoise.commands.types import IntRange
from equipoise.exit_codes import OK
from equipoise.options import common, say, trace_changes, trace_options


@click.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path())
@click.option("--out", metavar="FILE", default="site.yaml", show_default=True, help="Scenario to write.")
@click.option("--trace", metavar="FILE", type=click.Path(), help="Job trace of the site, as for run --trace.")
@trace_options
@click.option(
    "--count",
    type=click.Choice(["gpus", "cpus"]),
    default="gpus",
    show_default=True,
    help="Resource that jobs request; cpus counts each core as a GPU.",
)
@click.option("--gpus", type=IntRange(min=1), help="GPUs per node, if no file gives them.")
@click.option("--force", is_flag=True, help="Replace the file at --out.")
@common
@click.pass_context
def import_(
    ctx: click.Context, files: tuple[str, ...], out: str, trace: str | None, count: str, gpus: int | None, force: bool
) -> int:
    """Write a scenario from FILES that describe a cluster, recognised by their content.

    slurm.conf, gres.conf, topology.conf or topology.yaml, `sacctmgr show qos -P`, sinfo, scontrol show node;
    Kueue's flavors, queues and nodes; NCCL's topology XML, `nvidia-smi topo -m`, ibnetdiscover. What a scenario
    cannot express is written as comments.
    """
    from equipoise.policies.registry import make_policy
    from equipoise.sim.loading.file import load
    from equipoise.sim.loading.site.read import import_site
    from equipoise.study.display import cluster_line
    from equipoise.study.findings import screen

    target = Path(out)
    if target.exists() and not force:
        raise click.UsageError(f"{out} exists; --force replaces it")
    changes = trace_changes(ctx)
    if changes and not trace:
        raise click.UsageError("--trace-format, --columns, --zone and --keep need --trace")
    text = import_site(files, out=target, trace=trace, reading=changes, count=count, gpus=gpus or 0)
    write_whole(target, text)
    comments = sum(line.startswith("#   ") for line in text.splitlines())
    case, traced = load(target), f", with the jobs of {trace}" if trace else ""
    left = "one comment at its end says what" if comments == 1 else f"{comments} comments at its end say what"
    rest = f"{left} a scenario cannot express" if comments else "nothing is left out"
    if assumed := sum("assumed" in line.partition("#")[2] for line in text.splitlines()):
        rest += f", {assumed} {'value is' if assumed == 1 else 'values are'} assumed: see the comments"
    policy = make_policy(case.policy).name
    say(screen([f"{out} describes {cluster_line(case.cluster.model_dump())}{traced}, under {policy}; {rest}."]))
    return OK
