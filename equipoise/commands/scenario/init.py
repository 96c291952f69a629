"""init: write a commented first scenario, from five answers or options."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from equipoise.commands.types import IntRange
from equipoise.exit_codes import OK
from equipoise.options import common, say

_HEAD = """\
# {about} Every key: `equipoise schema KEY`.
schema_version: 1
name: {name}
cluster:
  nodes:  # one entry for each kind of node; `equipoise list` shows the hardware profiles
    - {{count: {nodes}, gpus: {gpus}, accelerator: {accelerator}, nic: 400 Gbit/s, nics: 8}}
"""
_JOBS = """\
workload:
  generate:  # made-up jobs; for real ones, put `trace: {{file: jobs.csv}}` in the place of `generate`
    length: 2 d
    classes:
      - name: small
        rate: {small}/d  # jobs that come in a day
        arrivals: {{kind: diurnal}}
        duration: {{kind: lognormal, median: 1 h, sigma: 1.2, low: 60 s, high: 12 h}}
        gpus: {{{sizes}}}  # GPUs of a job: percent of the jobs
      - name: large
        rate: {large}/d
        duration: {{kind: lognormal, median: 4 h, sigma: 0.8, low: 10 min, high: 1 d}}
        gpus: {{{wide}: 100}}
policy: {policy}
seed: 1
"""
_TRACE = """\
workload:
  trace: {{file: {trace}}}  # `equipoise check` says what is missing in it
policy: {policy}
"""
_TRAIN = """\
workload:
  models:
    model:  # a published name, or the path of your own config.json
      transformer: {{config: {model}, sequence: 4096, plan: auto, stack: megatron-core/H100}}
  jobs:
    - {{name: training, model: model, gpus: {all}, tokens: {tokens}, global_batch: {batch}}}
faults:  # leave out for a cluster that never fails
  crash: {{gpu_hours: 50000, repair: 1 h}}
policy: fifo
seed: 1
"""
KINDS = {
    "queue": (
        "The queue of a cluster.",
        "equipoise run {file}",
        "equipoise size {file} --grow --vary cluster.nodes.0.count={nodes},{more} --target 'queueing_p95<=2h'",
    ),
    "train": ("A training run of a large model.", "equipoise fit {file}", "equipoise run {file}"),
    "policy": (
        "Jobs to try a policy on.",
        "equipoise compare {file} --policy fifo --policy {policy}",
        "equipoise run {file} --out runs",
    ),
}
"""What the scenario is, and two commands to go on with."""


@click.command()
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--kind", type=click.Choice(list(KINDS)), help="The question: a queue, a training run, or a policy.")
@click.option("--nodes", type=IntRange(1, 100_000), help="Number of nodes.")
@click.option("--gpus", type=IntRange(1, 64), help="GPUs of a node.")
@click.option("--accelerator", help="Kind of GPU, as the catalogue names it.")
@click.option("--model", help="With train: a published model, or the path of a config.json.")
@click.option("--tokens", help="With train: tokens to train on.")
@click.option(
    "--trace", type=click.Path(exists=True), help="With queue or policy: a file of real jobs. Default: made-up ones."
)
@click.option("--policy", help="With queue or policy: the policy.")
@common
def init(file: str, kind: str | None, **given: str | int | None) -> int:
    """Write FILE, a commented scenario to start from; what no option says is asked at a terminal.

    Without a terminal, what is not given takes the value that the question would propose.
    """
    from equipoise.base.files import write_whole
    from equipoise.sim.loading.file import read_scenario
    from equipoise.sim.scenario.tree import InputError

    path = Path(file)
    if path.exists():
        raise click.UsageError(f"{file}: exists already; give another name, or remove it first")
    kind = str(_asked("What is it about?", kind, "train", click.Choice(list(KINDS))))
    nodes = int(_asked("How many nodes?", given["nodes"], 8, IntRange(1)))
    gpus = int(_asked("GPUs of a node?", given["gpus"], 8, IntRange(1)))
    accelerator = _asked("Which GPU? (a name of scenarios/hardware/catalogue.yaml)", given["accelerator"], "h100_sxm")
    values = {
        "name": json.dumps(path.stem),
        "nodes": nodes,
        "gpus": gpus,
        "accelerator": accelerator,
        "all": nodes * gpus,
    }
    if kind == "train":
        model = _asked("Which model? (such as llama3-8b, or a config.json)", given["model"], "llama2-7b")
        values |= {"model": json.dumps(model), "tokens": given["tokens"] or "100B", "batch": max(512, 2 * nodes * gpus)}
        body = _TRAIN
    else:
        default = "easy" if kind == "queue" else "srtf"
        values["policy"] = _asked("Under which policy? (`equipoise list` has them)", given["policy"], default)
        share = nodes * gpus / 8  # of a made-up load that keeps about three quarters of the GPUs busy
        values |= {"small": max(1, round(15 * share)), "large": max(1, round(0.9 * share))}
        if given["trace"]:
            values["trace"] = json.dumps(os.path.relpath(str(given["trace"]), path.parent))
        sizes = {1: 60}
        for size, percent in ((max(1, gpus // 2), 30), (gpus, 10)):
            sizes[size] = sizes.get(size, 0) + percent
        values |= {"sizes": ", ".join(f"{size}: {percent}" for size, percent in sizes.items())}
        values["wide"] = max(1, nodes * gpus // 4)
        body = _TRACE if given["trace"] else _JOBS
    about, *then = KINDS[kind]
    text = (_HEAD + body).format_map({"about": about, **values})
    write_whole(path, text.encode())
    try:
        read_scenario(path)
    except InputError:
        path.unlink()
        raise
    say(f"{file} is written. Go on with:")
    for command in then:
        say(f"  {command.format_map({'file': shlex.quote(file), 'more': 2 * nodes, **values})}")
    return OK


def _asked(question: str, given: str | int | None, default: str | int, kind: Any = None) -> str | int:
    """What an option says; else what is answered at a terminal; else the default."""
    if given is not None:
        return given
    answer: str | int = click.prompt(question, default=default, type=kind, err=True) if sys.stdin.isatty() else default
    return answer
