"""Checks of a whole scenario: names that must exist, sizes that must fit, magnitudes that look like mistakes.

`problems` and `doubts` give (key path, text) pairs; `sim.loading.file` adds file, line and column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import numpy as np
from pydantic import BaseModel

from equipoise.policies.kernels.slices import is_slice
from equipoise.policies.registry import PolicyError, make_policy, make_stage
from equipoise.sim.cost.step import least_bytes
from equipoise.sim.feature import features
from equipoise.sim.hardware.profile import Accelerator, HardwareProfile, load_profile
from equipoise.sim.job.declared import copies
from equipoise.sim.loading.availability import pool_problems
from equipoise.sim.loading.checks_energy import energy_problems, money_problems
from equipoise.sim.loading.checks_plausible import parallel_doubts, plausible_doubts
from equipoise.sim.loading.throughputs import throughput_problems
from equipoise.sim.loading.transformers import bind, has_transformers
from equipoise.sim.network.topology import Topology, TopologyError
from equipoise.sim.scenario.model import JobSpec, Model, NodeGroup, OnNodes, Scenario
from equipoise.sim.scenario.names import unknown
from equipoise.sim.scenario.tree import InputError, KeyPath, Tree
from equipoise.sim.scenario.units import Quantity, format_bytes
from equipoise.sim.traces.trace import Trace

Problem = tuple[KeyPath, str]

# Narrower than what the unit alone allows: a bare number meant in GB is caught.
_PLAUSIBLE = {
    ("NodeGroup", "host_memory"): (1e8, 1e15),
    ("NodeGroup", "storage"): (1e8, 1e18),
    ("Model", "gradient"): (1e2, 1e14),
    ("Checkpoint", "size"): (1e2, 1e15),
}


MAX_NODES, MAX_GPUS, MAX_JOBS = 1_000_000, 20_000_000, 5_000_000
"""More than fits into memory: most likely a number meant for something else."""


def problems(scenario: Scenario, base: Path | None = None, *, fits: bool = True, shapes: bool = True) -> list[Problem]:
    """Everything that makes the scenario impossible to run; `base` is the folder of its file.

    `fits`: whether a job that does not fit into memory is one of them. `shapes`: whether models have theirs, which
    features ask for.
    """
    if found := list(_sizes(scenario)):
        return found
    found = [*_policy(scenario), *queue_problems(scenario)]
    try:
        profile = load_profile(scenario.cluster.hardware, base)
    except InputError as error:
        return [*found, *((("cluster", "hardware"), line) for line in error.lines)]
    names, unknown = list(_names(scenario, profile)), list(_accelerators(scenario, profile))
    found += [*names, *unknown]
    if unknown:  # what else there is asks the accelerators
        jobs = enumerate(scenario.workload.jobs)
        sizes = (_job(scenario, profile, job, ("workload", "jobs", k), False) for k, job in jobs)
        found += [problem for one in sizes for problem in one]
        return [*found, *money_problems(scenario, profile, base)]
    found += energy_problems(scenario, profile, base)
    try:
        Topology(scenario.cluster, profile)
    except TopologyError as error:
        return found if names else [*found, (("cluster", "topology"), str(error))]
    if has_transformers(scenario):
        scenario, wrong = bind(scenario, profile)
        if wrong:
            return [*found, *wrong]
    for k, job in enumerate(scenario.workload.jobs):
        found += _job(scenario, profile, job, ("workload", "jobs", k), fits)
    found += _described(scenario)
    for feature in features(scenario) if shapes else ():
        found += feature.problems(scenario, profile)
    found += [*throughput_problems(scenario), *pool_problems(scenario)]
    for name, model in scenario.workload.models.items():
        found += _model(scenario, profile, model, ("workload", "models", name))
    return found


def trace_problems(scenario: Scenario, trace: Trace, file: str) -> list[str]:
    """Lines about jobs of a trace in `file` that this scenario can never run, at most ten."""
    total = sum(group.count * group.gpus for group in scenario.cluster.groups)

    def line(k: int, problem: str) -> str:
        """The problem of a job, with its place in the file."""
        place = f"{file}:{trace.line[k]}:1" if trace.line.size else file
        return f"{place}: job {trace.name_of(k)} {problem}"

    found = [
        line(k, f"needs {trace.gpus[k]} GPUs, the cluster has {total}")
        for k in np.flatnonzero(trace.gpus > total)[:10].tolist()
    ]
    models = sorted(scenario.workload.models)
    for name in sorted(set(trace.model.tolist()) - {"", *models}):
        first = int(np.flatnonzero(trace.model == name)[0])
        found.append(line(first, f"names an {unknown('model', name, models)}"))
    return found[:10]


def most_alike(scenario: Scenario) -> int:
    """Number of GPUs of the most frequent model."""
    count: dict[str, int] = {}
    for group in scenario.cluster.groups:
        count[group.accelerator] = count.get(group.accelerator, 0) + group.count * group.gpus
    return max(count.values())


def doubts(scenario: Scenario, tree: Tree | None = None) -> list[Problem]:
    """Values given in the scenario that are allowed but look like a mistake; `tree`: how they were written."""
    profile = load_profile(scenario.cluster.hardware)
    return [
        *_doubts(scenario, ()),
        *parallel_doubts(scenario),
        *plausible_doubts(scenario, profile, tree),
        *(doubt for feature in features(scenario) for doubt in feature.doubts(scenario, profile)),
    ]


def _sizes(scenario: Scenario) -> Iterator[Problem]:
    """Problems with numbers of nodes, GPUs and jobs beyond the limits."""
    for k, group in enumerate(scenario.cluster.nodes):
        if group.count * group.gpus > MAX_GPUS:
            yield ("cluster", "nodes", k), f"{group.count * group.gpus} GPUs; at most {MAX_GPUS} are possible"
        if group.cache > group.host_memory:
            given = f"{format_bytes(group.cache)}, more than its host_memory of {format_bytes(group.host_memory)}"
            yield ("cluster", "nodes", k, "cache"), given
        if group.count > MAX_NODES:
            yield ("cluster", "nodes", k), f"{group.count} nodes; at most {MAX_NODES} are possible"
    groups = scenario.cluster.groups
    where = "gpus" if scenario.cluster.gpus else "nodes"
    for what, most, found in (
        ("nodes", MAX_NODES, [group.count for group in groups]),
        ("GPUs", MAX_GPUS, [group.count * group.gpus for group in groups]),
    ):
        # Of a single group that is too large it is said above, at its own place.
        if sum(found) > most and (where == "gpus" or max(found) <= most):
            yield ("cluster", where), f"{sum(found)} {what}; at most {most} are possible"
    for k, job in enumerate(scenario.workload.jobs):
        if job.count > MAX_JOBS:
            yield ("workload", "jobs", k, "count"), f"{job.count} jobs; at most {MAX_JOBS} are possible"
            return
    if (total := sum(job.count for job in scenario.workload.jobs)) > MAX_JOBS:
        yield ("workload", "jobs"), f"{total} jobs; at most {MAX_JOBS} are possible"


def _described(scenario: Scenario) -> Iterator[Problem]:
    """Problems with classes of generated jobs that need more GPUs than exist."""
    total = sum(group.count * group.gpus for group in scenario.cluster.groups)
    spec = scenario.workload.generate
    for k, kind in enumerate(spec.classes if spec is not None else ()):
        if (most := max(count for count, weight in kind.gpus.items() if weight)) > total:
            yield (("workload", "generate", "classes", k, "gpus"), f"needs {most} GPUs, the cluster has {total}")


def _policy(scenario: Scenario) -> Iterator[Problem]:
    bad = False
    for k, entry in enumerate(scenario.policy):
        for name, parameters in entry.items() if isinstance(entry, dict) else [(entry, None)]:
            try:
                make_stage(name.strip(), parameters)
            except PolicyError as error:
                bad = True
                yield ("policy", k, *([name] if isinstance(entry, dict) else [])), str(error)
    if not bad:
        try:
            make_policy(scenario.policy)
        except PolicyError as error:
            yield ("policy",), str(error)


def _names(scenario: Scenario, profile: HardwareProfile) -> Iterator[Problem]:
    """Problems with names of nodes, groups and models that do not exist."""
    groups = [group.name for group in scenario.cluster.groups]
    first = {name: k for k, name in reversed(list(enumerate(groups)))}
    double = [k for k, name in enumerate(groups) if first[name] < k]
    for k in double:
        yield (("cluster", "nodes", k, "name"), f"{groups[k]!r} is the name of two groups; give each its own 'name'")
    spot, trace = scenario.faults.spot, scenario.workload.trace
    if spot is not None and spot.group not in groups:
        yield ("faults", "spot", "group"), unknown("group", spot.group, groups)
    if trace is not None:
        models = sorted(scenario.workload.models)
        for k, name in enumerate(trace.training.models):
            if name not in models:
                yield ("workload", "trace", "training", "models", k), unknown("model", name, models)
    if not double:
        yield from _nodes(scenario, profile)


def _named_nodes(scenario: Scenario) -> Iterator[tuple[KeyPath, str]]:
    """Every place where the scenario names a node."""
    for k, slow in enumerate(scenario.cluster.slow_links):
        yield ("cluster", "slow_links", k, "node"), slow.node
    for k, event in enumerate(scenario.faults.events):
        yield ("faults", "events", k, "node"), event.node
    for j, job in enumerate(scenario.workload.jobs):
        if job.data is not None and isinstance(job.data.placement, OnNodes):
            for k, name in enumerate(job.data.placement.nodes):
                yield ("workload", "jobs", j, "data", "placement", "nodes", k), name


def _nodes(scenario: Scenario, profile: HardwareProfile) -> Iterator[Problem]:
    named = list(_named_nodes(scenario))
    if not named:
        return
    try:
        topology = Topology(scenario.cluster.model_copy(update={"slow_links": ()}), profile)
    except TopologyError:
        return  # the cluster itself is wrong, and says so below
    for path, name in named:
        try:
            topology.node_index(name)
        except TopologyError as error:
            yield path, str(error)
    gpus = [group.gpus for group in scenario.cluster.groups for _ in range(group.count)]
    without = {name for name, count in zip(topology.node_names, gpus, strict=True) if not count}
    for k, event in enumerate(scenario.faults.events):
        if event.kind == "corrupt" and event.node in without:
            yield ("faults", "events", k, "node"), f"{event.node!r} has no GPU that could be corrupt"


def _accelerators(scenario: Scenario, profile: HardwareProfile) -> Iterator[Problem]:
    for k, group in enumerate(scenario.cluster.groups):
        try:
            profile.accelerator(group.accelerator)
        except ValueError as error:
            yield ("cluster", "nodes", k, "accelerator"), str(error)
            continue
        if group.sharing == "mig":
            yield from _slices(scenario, group, profile.accelerator(group.accelerator).mig, k)


def _slices(scenario: Scenario, group: NodeGroup, profiles: tuple[str, ...], k: int) -> Iterator[Problem]:
    """Problems with MIG: groups must support it, and every requested part must be a slice."""
    if group.gpus and not profiles:
        yield ("cluster", "nodes", k, "sharing"), f"{group.accelerator} has no MIG; allowed: mps"
    for j, job in enumerate(scenario.workload.jobs):
        if group.gpus and profiles and job.gpu_share < 1.0 and not is_slice(job.gpu_share):
            text = f"{job.gpu_share:g} of a GPU is not a MIG slice of {group.name}; allowed: 1/7, 2/7, 3/7, 4/7, 1"
            yield ("workload", "jobs", j, "gpu_share"), f"{text}, as 0.14, 0.29, 0.43, 0.57"


def _job(scenario: Scenario, profile: HardwareProfile, job: JobSpec, path: KeyPath, fits: bool) -> Iterator[Problem]:
    total = sum(group.count * group.gpus for group in scenario.cluster.groups)
    model = None if job.model is None else scenario.workload.models[job.model]
    if model is None:
        if job.gpus > total:
            yield (*path, "gpus"), f"needs {job.gpus} GPUs, the cluster has {total}"
        elif not job.mix_gpus and job.gpus > (most := most_alike(scenario)):
            yield (
                (*path, "gpus"),
                f"needs {job.gpus} GPUs of one model, the cluster has {most}; or set mix_gpus: true",
            )
        return
    if job.batch_max is not None and model.noise_scale is None:
        text = "the model has no 'noise_scale', so a larger batch would cost nothing; give 'noise_scale'"
        yield (*path, "batch_max"), text
    size = model.parallel.tensor * model.parallel.pipeline
    workers = job.gpus // size
    low, high = job.workers_min or workers, job.workers_max or max(workers, job.workers_min or 0)
    if workers < 1:
        yield (*path, "gpus"), f"{job.gpus} GPUs are fewer than the {size} of one replica"
    elif low > high:
        yield (*path, "workers_min"), f"at least {low} workers exceed the most, {high}"
    elif low * size > total:
        yield (*path, "gpus"), f"needs {low * size} GPUs, the cluster has {total}"
    elif fits:
        yield from _memory(scenario, profile, job, model, path)


def _memory(
    scenario: Scenario, profile: HardwareProfile, job: JobSpec, model: Model, path: KeyPath
) -> Iterator[Problem]:
    """A replica must fit into the memory of enough GPUs with one sample at a time; more take further passes."""
    size = model.parallel.tensor * model.parallel.pipeline
    workers = job.gpus // size
    need = least_bytes(model, workers) / job.gpu_share
    groups = [
        (profile.accelerator(g.accelerator).memory_bytes.value, g.count * g.gpus)
        for g in scenario.cluster.groups
        if g.gpus
    ]
    fitting = sum(count for memory, count in groups if memory >= need)
    wanted = (job.workers_min or workers) * size
    if fitting < wanted:
        largest = max(memory for memory, _ in groups)
        share = "" if job.gpu_share == 1.0 else f" (a share of {job.gpu_share:g})"
        yield (
            path,
            f"needs {need:.0f} bytes ({format_bytes(need)}) for one sample at a time on each of {wanted} GPUs"
            f"{share}; {fitting or 'no'} GPUs have that much memory, "
            f"the largest has {largest:.0f} bytes ({format_bytes(largest)})",
        )


def _model(scenario: Scenario, profile: HardwareProfile, model: Model, path: KeyPath) -> Iterator[Problem]:
    """Problems with hardware data that a model needs: a rate for its precision, exchange constants."""
    used: dict[str, Accelerator] = {
        g.accelerator: profile.accelerator(g.accelerator) for g in scenario.cluster.groups if g.gpus
    }
    if model.flop_per_sample is not None:
        for name, accelerator in used.items():
            if model.precision not in accelerator.flop_per_s:
                known = ", ".join(accelerator.flop_per_s)
                yield (*path, "precision"), f"{name} has no rate for {model.precision!r}; it has {known}"
    if model.step is not None:
        for name, accelerator in used.items():
            try:
                accelerator.step(model.step, model.precision)
            except ValueError as error:
                yield (*path, "step"), f"{name}: {error}"
    if model.transformer is None and (model.exchange.alpha is None or model.exchange.rate is None):
        absent = [
            f"{n} {'between' if tier == 'inter' else 'inside'} nodes"
            for n in used
            for tier in _tiers(scenario.cluster.groups)
            if profile.fabric(tier, accelerator=n) is None
        ]
        if absent:
            text = f"hardware profile {profile.name!r} has no all_reduce fabric for {absent[0]}"
            yield (*path, "exchange"), f"{text}; give 'alpha' and 'rate'"


def _tiers(groups: tuple[NodeGroup, ...]) -> list[Any]:
    several = sum(group.count for group in groups) > 1
    return ["inter"] * several + ["intra"] * any(group.gpus > 1 for group in groups)


def _doubts(section: BaseModel, path: KeyPath) -> Iterator[Problem]:
    for name in type(section).model_fields:
        if name in section.model_fields_set:
            yield from _doubts_of(section, name, getattr(section, name), (*path, name))


def _doubts_of(section: BaseModel, name: str, value: Any, path: KeyPath) -> Iterator[Problem]:
    if isinstance(value, BaseModel):
        yield from _doubts(value, path)
    elif isinstance(value, tuple):
        for k, item in enumerate(value):
            yield from _doubts_of(section, name, item, (*path, k))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _doubts_of(section, name, item, (*path, key))
    elif isinstance(value, float):
        field = type(section).model_fields[name]
        quantity = next(_quantities(Annotated[field.annotation, *field.metadata, None]), None)
        if quantity is not None:
            limits = _PLAUSIBLE.get((type(section).__name__, name), quantity.plausible)
            if text := quantity.implausible(value, limits):
                yield path, text


def _quantities(annotation: Any) -> Iterator[Quantity]:
    """Quantities that an annotation mentions, also inside a union."""
    if get_origin(annotation) is Annotated:
        yield from (m for m in annotation.__metadata__ if isinstance(m, Quantity))
        annotation = get_args(annotation)[0]
    for inner in get_args(annotation):
        yield from _quantities(inner)


def queue_problems(scenario: Scenario) -> Iterator[Problem]:
    """Names of nodes, accelerators, accounts, partitions, QOS and queues that do not exist."""
    q, groups = scenario.queues, scenario.cluster.groups
    kinds = {g.name for g in groups if g.gpus} | {g.accelerator for g in groups if g.gpus}
    if any(part.nodes for part in q.partitions):  # a million names take a while
        nodes = {g.name for g in groups} | {f"{g.name}-{k}" for g in groups for k in range(g.count)}
        for i, part in enumerate(q.partitions):
            yield from _each(("queues", "partitions", i, "nodes"), part.nodes, nodes, "node or group of nodes")
    for section in ("flavors", "gpu_types"):
        for name, words in getattr(q, section).items():
            yield from _each(("queues", section, name), words, kinds, "accelerator or group of nodes")
    for section in ("accounts", "users", "qos", "partitions"):
        for i, part in enumerate(getattr(q, section)):
            path = ("queues", section, i, "gpus_of_type")
            yield from _each(path, tuple(part.gpus_of_type), kinds, "accelerator or group of nodes", keys=True)
    yield from _jobs(scenario, kinds)


def _jobs(scenario: Scenario, kinds: set[str]) -> Iterator[Problem]:
    q = scenario.queues
    known = {
        "account": {a.name for a in q.accounts},
        "partition": {p.name for p in q.partitions},
        "qos": {x.name for x in q.qos},
        "queue": {n for x in q.queues for n in (*copies(x), *x.names)},
    }
    for k, job in enumerate(scenario.workload.jobs):
        yield from _each(("workload", "jobs", k, "gpu_types"), job.gpu_types, kinds, "accelerator or group of nodes")
        for kind, names in known.items():
            name = getattr(job, kind)
            if names and name and name not in names:
                yield ("workload", "jobs", k, kind), unknown(kind, name, names)


def _each(path: KeyPath, words: Sequence[str], known: set[str], what: str, *, keys: bool = False) -> Iterator[Problem]:
    for k, word in enumerate(words):
        if word not in known:
            yield (*path, word if keys else k), unknown(what, word, known)
