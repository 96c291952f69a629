"""The section `queues` of a scenario from a site's files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from equipoise.base.numerals import is_index
from equipoise.formats.accelerators import gres_name, is_accelerator
from equipoise.formats.kueue.generator import GeneratedLevel, GeneratedTest, GeneratedWork
from equipoise.formats.kueue.objects import ClusterQueue, KueueObjects, KueueQuota
from equipoise.formats.kueue.trees import TREES
from equipoise.formats.slurm.accounts import Accounts
from equipoise.formats.slurm.config import SlurmConfig, SlurmPartition
from equipoise.formats.slurm.hardware import SlurmQos
from equipoise.formats.slurm.hostlist import split_list
from equipoise.formats.slurm.values import parse_memory
from equipoise.sim.loading.site.cluster import Site, SiteNodes, SiteSwitch, accelerator_of
from equipoise.sim.scenario.queues import Limits

_AMOUNTS = {
    "grptres": "gpus",
    "maxtrespu": "gpus_per_user",
    "maxtresperuser": "gpus_per_user",
    "maxtrespa": "gpus_per_account",
    "maxtresperaccount": "gpus_per_account",
    "maxtres": "gpus_per_job",
    "maxtresperjob": "gpus_per_job",
}
_COUNTS = {
    "grpjobs": "jobs",
    "maxjobspu": "jobs_per_user",
    "maxjobsperuser": "jobs_per_user",
    "maxjobspa": "jobs_per_account",
    "maxjobsperaccount": "jobs_per_account",
}
_TRES = {"cpu": "cpu", "mem": "mem", "node": "node"}
_OF_USER = {"grptres": "gpus", "grpjobs": "jobs", "maxjobs": "jobs", "maxtres": "gpus_per_job"}
"""Limits of an association of a user; of an account's, `MaxJobs` is each user's."""


def tell(site: Site, section: str, **entry: Any) -> None:
    """Add an entry without its empty values; entries without a name and repeated ones are skipped."""
    full = {key: value for key, value in entry.items() if value not in (None, "", (), {}, [])}
    told = site.queues.setdefault(section, [])
    key = (full.get("name"), full.get("account") if section == "users" else None)
    if key[0] is None or (section == "users" and key[1] is None):
        site.add_aside("Without a name or an account", f"one of {section}")
    elif any((one["name"], one.get("account") if section == "users" else None) == key for one in told):
        site.add_aside("Given twice, perhaps for several clusters: the first applies", f"{section} {key[0]}")
    else:
        told.append(full)


# -- Slurm -----------------------------------------------------------------------------------------------------


def _limits(
    site: Site,
    what: str,
    limits: Mapping[str, Mapping[str, str]],
    counts: Mapping[str, int],
    unit: str,
    amounts: Mapping[str, str],
    numbers: Mapping[str, str],
) -> dict[str, Any]:
    """Limits of GPUs and jobs; limits of other resources become comments."""
    found: dict[str, Any] = {}
    rest = []
    for column, tres in limits.items():
        key = amounts.get(column.lower(), "")
        for name, value in tres.items():
            gres = gres_name(name) if unit == "GPUs" else None
            whole = name == "cpu" if unit == "CPUs" else gres is not None and not gres[1]
            typed = gres is not None and key == "gpus"
            if key and whole and is_index(value):
                found[key] = int(value)
            elif key and name in _TRES and (amount := _amount(name, value)) is not None:
                found.setdefault(key.replace("gpus", "tres", 1), {})[name] = amount
            elif gres is not None and typed and is_index(value):
                found.setdefault("gpus_of_type", {})[accelerator_of(gres[1])[0]] = int(value)
            else:
                rest.append(f"{column} {name}={value}")
    for column, count in counts.items():
        if column.lower() in numbers:
            found[numbers[column.lower()]] = count
        else:
            rest.append(f"{column} {count}")
    site.add_aside("Limits without a counterpart in the scenario", *([f"{what}: {', '.join(rest)}"] if rest else []))
    return found


def leave_out_limits(site: Site) -> None:
    """Set limits aside where the site declares but does not enforce them."""
    for section in ("qos", "accounts", "users") if not site.enforces_limits else ():
        for entry in site.queues.get(section, ()):
            limits = {key: entry.pop(key) for key in list(entry) if key in Limits.model_fields}
            told = ", ".join(f"{key} {value}" for key, value in limits.items())
            heading = "Limits that AccountingStorageEnforce does not enforce, left out"
            site.add_aside(heading, *([f"{section} {entry['name']}: {told}"] if told else []))


def _amount(name: str, value: str) -> str | int | None:
    """An amount of cores, memory or nodes as a scenario says it; None for one that is no number."""
    if name != "mem":
        return int(value) if is_index(value) else None
    held = parse_memory(value)
    return None if held is None or held[0] <= 0 else f"{held[0] / 2**20:.12g} MiB"


def add_qos(site: Site, rows: Sequence[SlurmQos], unit: str) -> None:
    """A QOS: priority, limits, and whose jobs its own may stop."""
    known = {qos.name for qos in rows}
    for qos in rows:
        limits = _limits(site, f"QOS {qos.name}", qos.limits, qos.counts, unit, _AMOUNTS, _COUNTS)
        preempts = [name for name in qos.preempt if name in known]
        tell(site, "qos", name=qos.name, priority=qos.priority or None, preempts=preempts, **limits)
        strange = ",".join(name for name in qos.preempt if name not in known)
        other = {
            "preempts a QOS that is not in these files": strange,
            "flags": ",".join(qos.flags),
            "longest": qos.max_wall_s,
            "grace time": qos.grace_time_s,
            "preempt mode": qos.preempt_mode if qos.preempt_mode.lower() not in ("cluster", "requeue") else "",
            **qos.other,
        }
        listed = ", ".join(f"{key} {value}" for key, value in other.items() if value)
        listed += f", usage factor {qos.usage_factor:g}" if qos.usage_factor != 1.0 else ""
        site.add_aside("More on QOS", *([f"{qos.name}: {listed.strip(', ')}"] if listed else []))


def add_accounts(site: Site, found: Accounts, unit: str) -> None:
    """Accounts and their users with shares and limits, and QOS where the file has them."""
    add_qos(site, found.qos, unit)
    known = {a.account for a in found.associations if not a.user}
    for name in dict.fromkeys(a.account for a in found.associations if a.user and a.account not in known):
        tell(site, "accounts", name=name)
    account = {**_OF_USER, "grptres": "gpus", "maxtres": "gpus_per_job"}
    numbers = {"grpjobs": "jobs", "maxjobs": "jobs_per_user"}
    parents = 0
    for a in sorted(found.associations, key=lambda a: not a.default):  # a user's first account is the default
        what = f"user {a.user} of {a.account}" if a.user else f"account {a.account}"
        amounts = _OF_USER if a.user else account
        limits = _limits(site, what, a.limits, a.counts, unit, amounts, amounts if a.user else numbers)
        shares = None if a.shares in (None, 1.0) else a.shares
        parents += bool(a.user) and a.shares is None
        if a.user:
            tell(site, "users", name=a.user, account=a.account, shares=shares, **limits)
        else:
            parent = a.parent if a.parent in known else ""
            tell(site, "accounts", name=a.account, parent=parent, shares=shares, **limits)
    if parents:
        site.add_aside("Shares", f"{parents} users share with their account (Fairshare=parent): taken as 1 share each")
    for change in found.changes:
        site.add_aside("Left out", f"{change.count} {change.reason} (line {change.first_line})")


def add_scheduling(site: Site, config: SlurmConfig) -> set[str]:
    """Add priority weights, backfill and partitions; returns the settings used."""
    kind = config.settings.get("schedulertype", "sched/backfill").removeprefix("sched/")
    given = "as configured" if "schedulertype" in config.settings else "Slurm's default"
    site.policy, site.policy_why = "multifactor", f"sched/{kind}, {given}"
    enforced = config.settings.get("accountingstorageenforce", "").lower().split(",")
    site.enforces_limits = not {"limits", "safe", "all"}.isdisjoint(enforced)
    used = {"schedulertype", "prioritytype", "accountingstorageenforce", *_add_preemption(site, config)}
    site.extra["decide"] = {"estimate": "time-limit"}  # what sched/backfill plans with
    if kind == "backfill":
        told = config.scheduler_parameters
        depth, window, interval = (told.get(key, "") for key in ("bf_max_job_test", "bf_window", "bf_interval"))
        site.queues["backfill"] = {
            "depth": int(depth) if is_index(depth) else 500,
            "window": f"{window if is_index(window) else 1440} min",
            "interval": f"{interval if is_index(interval) and int(interval) else 30} s",
        }
    weights = {name: config.priority_weights.get(name) for name in ("age", "fairshare", "partition", "qos")}
    weights["size"] = config.priority_weights.get("jobsize")
    if any(weights.values()):
        site.queues["priority"] = {
            **{name: _plain(weight) for name, weight in weights.items() if weight},
            "max_age": _time(config.times_s.get("prioritymaxage")),
            "half_life": "never"
            if config.times_s.get("prioritydecayhalflife") == 0
            else _time(config.times_s.get("prioritydecayhalflife")),
            "period": _time(config.times_s.get("prioritycalcperiod")),
            "favour_small": config.settings.get("priorityfavorsmall", "").upper() == "YES" or None,
            "algorithm": "classic" if "NO_FAIR_TREE" in config.settings.get("priorityflags", "").upper() else None,
        }
        site.queues["priority"] = {k: v for k, v in site.queues["priority"].items() if v is not None}
        used |= {f"priorityweight{name}" for name in ("age", "fairshare", "partition", "qos", "jobsize")}
        used |= {"prioritymaxage", "prioritydecayhalflife", "prioritycalcperiod", "priorityfavorsmall"}
    for partition in config.partitions:
        add_partition(site, partition)
    return used


def _add_preemption(site: Site, config: SlurmConfig) -> set[str]:
    """Add preemption; returns the settings used."""
    kind = config.settings.get("preempttype", "preempt/none").removeprefix("preempt/")
    mode = config.settings.get("preemptmode", "OFF").upper()
    if kind not in ("qos", "partition_prio") or mode == "OFF":
        return set()
    entry = {
        "by": "partition" if kind == "partition_prio" else "qos",
        "exempt": _time(config.times_s.get("preemptexempttime")),
        "youngest_first": "preempt_youngest_first" in config.scheduler_parameters or None,
    }
    site.queues["preemption"] = {key: value for key, value in entry.items() if value is not None}
    if mode != "REQUEUE":
        site.add_aside("Preemption", f"PreemptMode={mode}: simulated as requeue, from the last checkpoint")
    return {"preempttype", "preemptexempttime"} | ({"preemptmode"} if mode == "REQUEUE" else set())


def add_partition(site: Site, partition: SlurmPartition) -> None:
    """A partition: its nodes by the site's names, its tier, its factor and its QOS."""
    tell(
        site,
        "partitions",
        name=partition.name,
        nodes=None if partition.nodes.upper() == "ALL" else frozenset(partition.node_names),
        default=partition.default or None,
        tier=partition.priority_tier if partition.priority_tier != 1 else None,
        priority=partition.priority_job_factor if partition.priority_job_factor != 1 else None,
        qos=partition.qos,
        accounts=_allowed(partition),
        exclusive=partition.other.get("oversubscribe", "").upper() == "EXCLUSIVE" or None,
        spared=partition.preempt_mode.upper() == "OFF" or None,
    )


def _allowed(partition: SlurmPartition) -> list[str]:
    """Accounts that a partition takes; none: all."""
    accounts = split_list(partition.other.get("allowaccounts", ""))
    return [] if "ALL" in map(str.upper, accounts) else accounts


def _plain(number: float | None) -> int | float | None:
    return int(number) if number is not None and number == int(number) else number


def _time(time_s: float | None) -> str | None:
    if time_s is None or not math.isfinite(time_s) or time_s <= 0:
        return None
    return f"{time_s / 86400:g} d" if time_s % 86400 == 0 else f"{time_s:g} s"


# -- Kueue -----------------------------------------------------------------------------------------------------

_PREEMPT = {
    "Never": None,
    "LowerPriority": "lower-priority",
    "LowerOrNewerEqualPriority": "lower-or-newer-equal-priority",
    "Any": "any",
}


def counts(resource: str, unit: str) -> bool:
    """Whether a Kubernetes resource is counted."""
    return is_accelerator(resource) if unit == "GPUs" else resource == "cpu"


def add_queues(site: Site, found: KueueObjects, unit: str, kinds: Mapping[str, str]) -> None:
    """Cluster queues with the names of their local queues, cohorts and flavors; kinds: GPU type by flavor."""
    names = _merged(site, found, kinds)
    if len(names) > 1 or any(names.values()):
        site.queues["flavors"] = {name: [kind] for name, kind in names.items() if kind}
    flavor_of = {flavor: title for title in names for flavor in title.split("+")}
    doors: dict[str, list[str]] = {}
    for local in found.local_queues:
        several = len({x.cluster_queue for x in found.local_queues if x.name == local.name}) > 1
        name = f"{local.namespace}/{local.name}" if several else local.name  # a job's account is its namespace
        doors.setdefault(local.cluster_queue, []).append(name)
    more = [(x.name, x.rest) for x in found.local_queues] + [(x.name, x.rest) for x in found.cohorts]
    site.add_aside("More on local queues and cohorts", *(f"{n}: {', '.join(rest)}" for n, rest in more if rest))
    for cohort in found.cohorts:
        tell(
            site,
            "cohorts",
            name=cohort.name,
            parent=cohort.parent,
            **_quotas(cohort.quotas, unit, flavor_of),
            weight=None if cohort.weight == 1.0 else cohort.weight,
        )
    own = {*flavor_of, TREES}
    strange = [f"{q.name}: {x.flavor}" for q in found.cluster_queues for x in q.quotas if x.flavor not in own]
    done = "their quotas are left out" if flavor_of else "taken as any GPU"
    heading = f"Flavors that no object here defines (Kueue holds such a queue back): {done}"
    site.add_aside(heading, *dict.fromkeys(strange))
    known = {cohort.name for cohort in found.cohorts}
    named = [*(c.parent for c in found.cohorts), *(q.cohort for q in found.cluster_queues)]
    for name in dict.fromkeys(name for name in named if name and name not in known):
        tell(site, "cohorts", name=name)
    for queue in found.cluster_queues:
        _add_queue(site, queue, unit, flavor_of, list(dict.fromkeys(doors.get(queue.name, ()))))


def _merged(site: Site, found: KueueObjects, kinds: Mapping[str, str]) -> dict[str, str]:
    """Flavors by name with their accelerators; flavors of one accelerator are merged."""
    by_kind: dict[str, list[str]] = {}
    for flavor in found.flavors:
        by_kind.setdefault(kinds.get(flavor.name, ""), []).append(flavor.name)
    for kind, flavors in by_kind.items():
        if len(flavors) > 1:
            same = f"{', '.join(flavors)}: all {kind or 'of an unknown type'}, merged into one, quotas summed"
            site.add_aside("Flavors of the same GPUs", same)
    return {"+".join(flavors): kind for kind, flavors in by_kind.items()}


def _quotas(quotas: Iterable[KueueQuota], unit: str, flavor_of: Mapping[str, str]) -> dict[str, Any]:
    """`gpus`, `borrow` and `lend`: one number where there is one flavor for everything."""
    found: dict[str, dict[str, float]] = {"gpus": {}, "borrow": {}, "lend": {}}
    limited: set[str] = set()  # of merged flavors, one without a limit lends all it has, and may borrow without limit
    for quota in quotas:
        if not counts(quota.resource, unit):
            continue
        flavor = flavor_of.get(quota.flavor, quota.flavor)
        borrow = math.inf if quota.borrowing_limit is None else quota.borrowing_limit
        lend = quota.nominal if quota.lending_limit is None else quota.lending_limit
        limited |= set() if quota.lending_limit is None else {flavor}
        for key, amount in (("gpus", quota.nominal), ("borrow", borrow), ("lend", lend)):
            found[key][flavor] = found[key].get(flavor, 0.0) + amount
    found["borrow"] = {name: amount for name, amount in found["borrow"].items() if math.isfinite(amount)}
    found["lend"] = {name: amount for name, amount in found["lend"].items() if name in limited}
    one = len(set(flavor_of.values())) <= 1
    return {
        key: _plain(next(iter(values.values()))) if one and values else {k: _plain(v) for k, v in values.items()}
        for key, values in found.items()
    }


def _add_queue(site: Site, queue: ClusterQueue, unit: str, flavor_of: Mapping[str, str], names: Sequence[str]) -> None:
    quotas = _quotas(queue.quotas, unit, flavor_of)
    if not quotas["gpus"]:
        site.add_aside("Queues without a quota of " + unit, queue.name)
        quotas["gpus"] = 0
    borrows = queue.borrow_within_cohort == "LowerPriority" and queue.reclaim_within_cohort != "Never"
    tell(
        site,
        "queues",
        name=queue.name,
        cohort=queue.cohort,
        **quotas,
        order="strict" if queue.strategy == "StrictFIFO" else None,
        reclaim=_PREEMPT.get(queue.reclaim_within_cohort),
        within=_PREEMPT.get(queue.within_cluster_queue),
        borrow_within="lower-priority" if borrows else None,
        borrow_within_most=queue.borrow_within_most if borrows else None,
        weight=None if queue.weight == 1.0 else queue.weight,
        names=[n for n in names if n != queue.name],
    )
    others = sorted({quota.resource for quota in queue.quotas if not counts(quota.resource, unit)})
    more = [*queue.rest, *([f"quotas of {', '.join(others)}"] if others else [])]
    site.add_aside("More on cluster queues", *([f"{queue.name}: {', '.join(more)}"] if more else []))


def add_generated(site: Site, test: GeneratedTest) -> None:
    """Kueue's performance test: its queues, its jobs and its nodes, else as many GPUs as its nominal quotas."""
    total = 0.0
    every = [work for cohort in test.cohorts for group in cohort.queues for work in group.work]
    lift = max(0, 1 - min((work.priority for work in every), default=1))  # a scenario's are above 0
    for cohort in test.cohorts:
        for c in range(cohort.count):
            title = f"{cohort.name}-{c}"
            tell(site, "cohorts", name=title)
            for group in cohort.queues:
                for k in range(group.count):
                    name = f"{title}-{group.name}-{k}"
                    total += group.nominal_quota
                    tell(
                        site,
                        "queues",
                        name=name,
                        cohort=title,
                        gpus=_plain(group.nominal_quota),
                        borrow=_plain(group.borrowing_limit),
                        reclaim=_PREEMPT.get(group.reclaim_within_cohort),
                        within=_PREEMPT.get(group.within_cluster_queue),
                    )
                    site.jobs += [
                        {
                            "name": f"{work.name}-{title}-{k}",
                            "count": work.count,
                            "gpus": int(work.request * work.pods),
                            "arrival": f"{work.interval_s:g} s",
                            "spacing": f"{work.interval_s:g} s",
                            "duration": f"{work.run_s:g} s",
                            "priority": work.priority + lift,
                            "queue": name,
                            **_together(work, test.levels),
                        }
                        for work in group.work
                        if work.request * work.pods >= 1 and work.count > 0 and work.run_s > 0
                    ]
    site.name, site.policy, site.policy_why = "kueue-performance-test", "kueue", "whose test it is"
    site.extra = {
        "restart": {"detection": "0 s", "initialisation": "0 s", "checkpoint_write": "0 s"},
        "decide": {"writes_per_s": 50, "writes_burst": 100},
    }
    aside = [f"{w.name}: {w.topology} in {w.level}" for w in every if w.topology and not _together(w, test.levels)]
    site.add_aside("Topology requests of jobs that the simulation does not honour", *dict.fromkeys(aside))
    if test.levels:
        _add_generated_nodes(site, test.levels)
    else:
        remark = "one per unit of nominal quota"
        site.nodes.append(SiteNodes((), int(total), count=1, label="pool", remark=remark))


def _together(work: GeneratedWork, levels: Sequence[GeneratedLevel]) -> dict[str, str]:
    """A job's topology request as a scenario value: the level above nodes is a rack."""
    labels = [level.label for level in levels[-2:]]
    if work.topology not in ("required", "preferred") or work.level not in labels:
        return {}
    return {"together": f"{'node' if work.level == labels[-1] else 'rack'}-{work.topology}"}


def _add_generated_nodes(site: Site, levels: Sequence[GeneratedLevel]) -> None:
    """Nodes in equal racks; quota counts cores, so each core is a GPU."""
    racks, size = math.prod(level.count for level in levels[:-1]), levels[-1].count
    names = [f"node-{k:06d}" for k in range(racks * size)]
    remark = "each core counts as a GPU, as quotas count cores"
    site.nodes.append(SiteNodes(tuple(names), int(levels[-1].cpus), label="node", remark=remark))
    site.switches = [SiteSwitch(f"rack-{k}", tuple(names[k * size : (k + 1) * size])) for k in range(racks)]
