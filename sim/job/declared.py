"""A scenario's declared queues as integer codes: limits as trees, claims of jobs, fair shares."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from equipoise.policies.declared_queues import (
    ANY_PRIORITY,
    KINDS,
    LOWER_OR_NEWER,
    LOWER_PRIORITY,
    NEVER,
    RESOURCES,
    Queues,
)
from equipoise.policies.observation import Bools, Floats, Ints
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.scenario.names import nearest
from equipoise.sim.scenario.queues import Cohort, Limits, Queue, Tres
from equipoise.sim.scenario.tree import InputError

_POLICIES = {
    "never": NEVER,
    "lower-priority": LOWER_PRIORITY,
    "lower-or-newer-equal-priority": LOWER_OR_NEWER,
    "any": ANY_PRIORITY,
}
Claim = tuple[str, str, str, str, str, tuple[float, ...], tuple[str, ...]]
"""Names in the order of KINDS, what a job takes of each of RESOURCES (none where no limit asks), and its pin."""


class _Limit(NamedTuple):
    row: int
    gpus: float
    jobs: float
    nominal: float
    parent: int = -1
    kept: float = 0.0
    models: int = -1
    owner: int = -1
    resource: int = -1


class Places:
    """Which GPU models and nodes a scenario's words mean: an accelerator, a group of nodes, a node."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._names = cluster.topology.node_names
        self._groups = [group.name for group in cluster.groups]
        self._pins: dict[tuple[str, ...], tuple[str, ...]] = {}

    def nodes(self, words: Sequence[str], what: str) -> Bools:
        """(nodes,). Raises InputError for a word that is no group and no node."""
        found = np.zeros(len(self._names), dtype=np.bool_)
        for word in words:
            rows = [k for k, group in enumerate(self._groups) if word in (group, self._names[k])]
            if not rows:
                groups = nearest(word, dict.fromkeys(self._groups))
                raise InputError([f"queues: {what}: no group of nodes and no node {word!r}; {groups}"])
            found[rows] = True
        return found

    def models(self, words: Sequence[str], what: str) -> int:
        """Bits of GPU models. Raises InputError for a word that is neither an accelerator nor a group here."""
        bits, known = 0, self.cluster.gpu_models
        for word in words:
            groups = {group.accelerator for group in self.cluster.groups if word == group.name and group.gpus}
            named = [model for model in known if model == word or model in groups]
            if not named:
                listed = nearest(word, (*known, *dict.fromkeys(self._groups)))
                raise InputError([f"queues: {what}: {word!r} is not an accelerator or group here; {listed}"])
            for model in named:
                bits |= 1 << known.index(model)
        return bits

    def with_gpus(self, words: Sequence[str]) -> Bools:
        """The nodes whose accelerator or group is one of the words, and those without GPUs, (nodes,)."""
        return np.array(
            [not group.gpus or bool({group.name, group.accelerator} & {*words}) for group in self.cluster.groups]
        )

    def pin(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """The words, where the nodes that they name are not all nodes with these GPU models; else none."""
        if words not in self._pins:
            on = self.with_gpus(words)
            models = {group.accelerator for k, group in enumerate(self.cluster.groups) if group.gpus and on[k]}
            self._pins[words] = () if (on == self.with_gpus(tuple(models))).all() else words
        return self._pins[words]


class Declared:
    """The section `queues` of one scenario, applied to the claims of jobs."""

    def __init__(self, scenario: Scenario, cluster: Cluster) -> None:
        self.spec, self.cluster, self.places = scenario.queues, cluster, Places(cluster)
        self.cycles = scenario.decide.writes_per_s is not None
        self.accounts = {a.name: a for a in self.spec.accounts}
        self.users = {(u.account, u.name): u for u in self.spec.users}
        self.partitions = {p.name: p for p in self.spec.partitions}
        self.qos = {q.name: q for q in self.spec.qos}
        self.queues = {name: queue for queue in self.spec.queues for name in copies(queue)}
        self.queue_of = {name: name for name in self.queues}
        self.queue_of |= {alias: q.name for q in self.spec.queues for alias in q.names if alias not in self.queues}
        self.limits: dict[str, _Limit] = {}  # by name, parents first
        self._flavors = {
            name: self.places.models(words, f"flavors.{name}") for name, words in self.spec.flavors.items()
        }

    def standard(self, claim: Claim) -> Claim:
        """A claim with the default partition, and the cluster queue behind a local one."""
        user, account, partition, qos, queue, tres, pin = claim
        if not partition:
            partition = next((p.name for p in self.spec.partitions if p.default), "")
        local = f"{account}/{queue}"  # of its namespace, where several have a queue of this name
        queue = self.queue_of.get(local, self.queue_of.get(queue, queue))
        return user, account, partition, qos, queue, tres, pin

    def build(self, claims: Sequence[Claim], restricts: bool) -> Queues:
        """Build the codes of all declarations for these claims."""
        names = {kind: self._names_of(kind, [str(claim[k]) for claim in claims]) for k, kind in enumerate(KINDS)}
        codes = {kind: {name: k for k, name in enumerate(names[kind])} for kind in KINDS}
        table = [[codes[kind].get(str(claim[k]), -1) for k, kind in enumerate(KINDS)] for claim in claims]
        self._number = codes["queue"]
        leaves = [list(dict.fromkeys(self._leaves(*claim[:5]))) for claim in claims]
        most = max(map(len, leaves), default=0)
        nodes = np.array([self._nodes_of(claim) for claim in claims], dtype=np.bool_)
        whole = nodes.all() if nodes.size else True
        limits, share = list(self.limits.values()), _Shares(self, claims)
        tops = max((p.priority for p in self.spec.partitions), default=0.0)
        best = max((q.priority for q in self.spec.qos), default=0.0)
        partition = [self.partitions.get(claim[2]) for claim in claims]
        qos = [self.qos.get(claim[3]) for claim in claims]
        known = [self.queues.get(name) for name in names["queue"]]
        return Queues(
            names={**names, "limit": tuple(self.limits)},
            claims=np.array(table, dtype=np.int64).reshape(len(claims), len(KINDS)),
            nodes=np.empty((len(claims), 0), dtype=np.bool_) if whole else nodes,
            leaf=np.array([row + [-1] * (most - len(row)) for row in leaves], dtype=np.int64).reshape(
                len(leaves), most
            ),
            parent=np.array([limit.parent for limit in limits], dtype=np.int64),
            gpus_max=np.array([limit.gpus for limit in limits], dtype=np.float64),
            gpus_kept=np.array([limit.kept for limit in limits], dtype=np.float64),
            gpus_nominal=np.array([limit.nominal for limit in limits], dtype=np.float64),
            jobs_max=np.array([limit.jobs for limit in limits], dtype=np.float64),
            models=np.array([limit.models for limit in limits], dtype=np.int64),
            resource=np.array([limit.resource for limit in limits], dtype=np.int64),
            tres=np.array([claim[5] for claim in claims]) if self.counts_tres else np.empty((0, 0)),
            owner=np.array([limit.owner for limit in limits], dtype=np.int64),
            tier=np.array([p.tier if p else 1 for p in partition], dtype=np.int64),
            partition_factor=np.array([p.priority / tops if p and tops else 0.0 for p in partition]),
            qos_factor=np.array([q.priority / best if q and best else 0.0 for q in qos]),
            share_leaf=share.leaf,
            share_parent=share.parent,
            share=share.shares,
            spared=np.array(
                [
                    (p is not None and p.spared) or (q is not None and q.spared)
                    for p, q in zip(partition, qos, strict=True)
                ],
                dtype=np.bool_,
            ),
            preempts=self._preempts(names["qos"]),
            qos_priority=np.array([self.qos[n].priority if n in self.qos else 0.0 for n in names["qos"]]),
            numbers=self._numbers(),
            strict=np.array([q is not None and q.order == "strict" for q in known], dtype=np.bool_),
            reclaim=np.array([_POLICIES[q.reclaim] if q else NEVER for q in known], dtype=np.int64),
            within=np.array([_POLICIES[q.within] if q else NEVER for q in known], dtype=np.int64),
            weight=np.array([q.weight if q else 1.0 for q in known]),
            borrows_below=np.array([_borrows_below(q) for q in known]),
            restricts=bool(limits) or not whole or restricts,
        )

    def _names_of(self, kind: str, told: Sequence[str]) -> tuple[str, ...]:
        declared = {
            "user": [name for _, name in self.users],
            "account": [*self.accounts],
            "qos": [*self.qos],
            "partition": [*self.partitions],
            "queue": [*self.queues],
        }
        return tuple(name for name in dict.fromkeys((*declared[kind], *told)) if name)

    def _numbers(self) -> dict[str, float]:
        p, b = self.spec.priority, self.spec.backfill
        numbers = {"fair_sharing": float(self.spec.fair_sharing), "cycles": float(self.cycles)}
        if p is not None:
            numbers |= {key: getattr(p, key) for key in ("age", "fairshare", "size", "partition", "qos")}
            half_life_s = math.inf if p.half_life == "never" else p.half_life
            numbers |= {"max_age_s": p.max_age, "half_life_s": half_life_s, "period_s": p.period}
            numbers |= {"classic": float(p.algorithm == "classic"), "favour_small": float(p.favour_small)}
        if b is not None:
            numbers |= {"depth": float(b.depth), "window_s": b.window, "interval_s": b.interval}
        if (stops := self.spec.preemption) is not None:
            numbers |= {"preempt_by": {"qos": 1.0, "partition": 2.0}[stops.by], "exempt_s": stops.exempt}
            numbers |= {"youngest_first": float(stops.youngest_first)}
        return numbers

    def _preempts(self, names: Sequence[str]) -> Bools:
        """(QOS, QOS): whether jobs of the first may stop those of the second."""
        found = np.zeros((len(names), len(names)), dtype=np.bool_)
        for k, name in enumerate(names):
            found[k, [names.index(other) for other in (self.qos[name].preempts if name in self.qos else ())]] = True
        return found

    # -- nodes and limits of one claim -----------------------------------------------------------------------

    def gpus_of_a_node(self, partition: str) -> int:
        """GPUs per node of an exclusive partition, the fewest of its nodes; 0: its jobs share nodes."""
        part = self.partitions.get(partition or next((p.name for p in self.spec.partitions if p.default), ""))
        if part is None or not part.exclusive:
            return 0
        nodes = self.places.nodes(part.nodes, f"partitions: {part.name}") if part.nodes else slice(None)
        sizes = self.cluster.nodes.gpus[nodes]
        return int(sizes[sizes > 0].min(initial=self.cluster.nodes.gpus.max()))

    def _nodes_of(self, claim: Claim) -> Bools:
        """Nodes of its partition, of the flavors that its queue has quota of, and of the groups it is pinned to."""
        part, queue = self.partitions.get(claim[2]), self.queues.get(claim[4])
        nodes = np.ones(len(self.cluster.nodes), dtype=np.bool_)
        if part is not None and part.accounts and claim[1] not in part.accounts:
            nodes[:] = False
        elif part is not None and part.nodes:
            nodes &= self.places.nodes(part.nodes, f"partitions: {part.name}")
        if queue is not None and isinstance(queue.gpus, Mapping):
            words = [word for flavor in queue.gpus for word in self.spec.flavors.get(flavor, (flavor,))]
            nodes &= self.places.with_gpus(words)
        return nodes & self.places.with_gpus(claim[6]) if claim[6] else nodes

    def _leaves(self, user: str, account: str, partition: str, qos: str, queue: str) -> Iterator[int]:
        if account in self.accounts:
            yield from self._account_leaves(user, account)
        part = self.partitions.get(partition)
        if part is not None:
            yield from self._group(f"partition {partition}", part, user, account)
        named = dict.fromkeys((qos, part.qos if part is not None else ""))
        for name in named:
            if name in self.qos:
                yield from self._group(f"QOS {name}", self.qos[name], user, account)
        if queue in self.queues:
            yield from self._queue_leaves(queue)

    def _limit(self, name: str, gpus: float | None, jobs: float | None = None, **other: Any) -> int:
        """The row of the limit of that name, made once."""
        most = math.inf if gpus is None else gpus
        one = _Limit(len(self.limits), most, math.inf if jobs is None else jobs, **({"nominal": most} | other))
        return self.limits.setdefault(name, one).row

    def _group(self, name: str, spec: Limits, user: str, account: str) -> Iterator[int]:
        """Limits of all jobs together, of each user and of each account."""
        if spec.gpus is not None or spec.jobs is not None:
            yield self._limit(name, spec.gpus, spec.jobs)
        if user and (spec.gpus_per_user is not None or spec.jobs_per_user is not None):
            yield self._limit(f"{name}, user {user}", spec.gpus_per_user, spec.jobs_per_user)
        if account and (spec.gpus_per_account is not None or spec.jobs_per_account is not None):
            yield self._limit(f"{name}, account {account}", spec.gpus_per_account, spec.jobs_per_account)
        yield from self._typed(name, spec)
        yield from self._tres(name, spec.tres)
        if user:
            yield from self._tres(f"{name}, user {user}", spec.tres_per_user)
        if account:
            yield from self._tres(f"{name}, account {account}", spec.tres_per_account)

    def _tres(self, name: str, spec: Tres) -> Iterator[int]:
        for resource, key in enumerate(RESOURCES):
            if (most := getattr(spec, key)) is not None:
                yield self._limit(f"{name}, {key}", most, resource=resource)

    def _typed(self, name: str, spec: Limits) -> Iterator[int]:
        for word, gpus in spec.gpus_of_type.items():
            models = self.places.models((word,), f"{name}: gpus_of_type")
            if self.places.pin((word,)):
                text = f"queues: {name}: gpus_of_type: other groups have the accelerator of {word!r}"
                raise InputError([f"{text}; name the accelerator, or make the group a partition with a limit"])
            yield self._limit(f"{name}, {word}", gpus, models=models)

    def _account_leaves(self, user: str, account: str) -> Iterator[int]:
        own, each = self.users.get((account, user)), self.accounts[account]
        gpus = own.gpus if own is not None and own.gpus is not None else each.gpus_per_user
        jobs = own.jobs if own is not None and own.jobs is not None else each.jobs_per_user
        above = self._account(account)
        if user and (gpus is not None or jobs is not None):
            yield self._limit(f"account {account}, user {user}", gpus, jobs, parent=above)
        elif above >= 0:
            yield above
        if user:
            yield from self._tres(f"account {account}, each user: {user}", each.tres_per_user)
        while account:
            yield from self._typed(f"account {account}", self.accounts[account])
            yield from self._tres(f"account {account}", self.accounts[account].tres)
            account = self.accounts[account].parent
        if own is not None:
            yield from self._typed(f"account {own.account}, user {user}", own)
            yield from self._tres(f"account {own.account}, user {user}", own.tres)

    def _account(self, name: str) -> int:
        """The limit of an account, or of the nearest one above that has one; -1: none has."""
        if not name:
            return -1
        spec = self.accounts[name]
        above = self._account(spec.parent)
        if spec.gpus is None and spec.jobs is None:
            return above
        return self._limit(f"account {name}", spec.gpus, spec.jobs, parent=above)

    # -- queues ----------------------------------------------------------------------------------------------

    def _bits(self, flavor: str) -> int:
        if flavor not in self._flavors:
            self._flavors[flavor] = self.places.models((flavor,), "quota of a flavor")
        return self._flavors[flavor]

    def _queue_leaves(self, name: str) -> Iterator[int]:
        spec = self.queues[name]
        flavors = list(spec.gpus) if isinstance(spec.gpus, Mapping) else [""]
        bits = [self._bits(flavor) if flavor else -1 for flavor in flavors]
        for k, one in enumerate(bits):
            for other, two in zip(flavors[:k], bits[:k], strict=True):
                if one & two:
                    same = f"flavors {other!r} and {flavors[k]!r} of queue {name} cover the same GPUs"
                    raise InputError([f"queues: {same}: merge them into one flavor with the sum of their quotas"])
        for flavor, mask in zip(flavors, bits, strict=True):
            above = self._cohort(spec.cohort, flavor, mask)
            own, kept = _of(spec.gpus, flavor), _kept(spec, flavor)
            most = own if above < 0 else own + _borrow(spec, flavor)
            title = f"quota of {name}" + (f" for {flavor}" if flavor else "")
            yield self._limit(
                title,
                most,
                parent=above,
                kept=kept if above >= 0 else 0.0,
                nominal=own,
                models=mask,
                owner=self._number[name],
            )

    def _cohort(self, name: str, flavor: str, mask: int) -> int:
        if not name:
            return -1
        spec = next(c for c in self.spec.cohorts if c.name == name)
        above = self._cohort(spec.parent, flavor, mask)
        own = self._subtree(spec, flavor)
        most = own if above < 0 else own + _borrow(spec, flavor)
        kept = max(0.0, own - _lend(spec, flavor)) if above >= 0 else 0.0
        title = f"quota of cohort {name}" + (f" for {flavor}" if flavor else "")
        return self._limit(title, most, parent=above, kept=kept, nominal=own, models=mask)

    def _subtree(self, spec: Cohort, flavor: str) -> float:
        """A cohort's own quota and what its members lend it (SubtreeQuota of Kueue)."""
        total = _of(spec.gpus, flavor)
        for child in self.spec.cohorts:
            if child.parent == spec.name:
                own = self._subtree(child, flavor)
                total += min(own, _lend(child, flavor))
        for queue in self.spec.queues:
            if queue.cohort == spec.name:
                total += queue.count * (_of(queue.gpus, flavor) - _kept(queue, flavor))
        return total

    def of_one_job(self, claim: Claim) -> tuple[float, Floats]:
        """(most GPUs, most of each of RESOURCES) of a single job of a claim."""
        user, account, partition, qos, *_ = claim
        part = self.partitions.get(partition)
        of_part = self.qos.get(part.qos) if part else None
        found: list[Limits | None] = [self.qos.get(qos), part, of_part, self.users.get((account, user))]
        while account in self.accounts:
            found.append(self.accounts[account])
            account = self.accounts[account].parent
        told = [spec for spec in found if spec is not None]
        gpus = min((s.gpus_per_job for s in told if s.gpus_per_job is not None), default=math.inf)
        each = [[getattr(s.tres_per_job, key) for s in told] for key in RESOURCES]
        return gpus, np.array([min((v for v in row if v is not None), default=math.inf) for row in each])

    @cached_property
    def counts_tres(self) -> bool:
        """Whether any limit bounds resources other than GPUs."""
        s = self.spec
        listed: tuple[Limits, ...] = (*s.accounts, *s.users, *s.partitions, *s.qos)
        kinds = ("tres", "tres_per_user", "tres_per_account", "tres_per_job")
        return any(getattr(limits, kind) != Tres() for limits in listed for kind in kinds)

    @cached_property
    def weighs(self) -> bool:
        """Whether anything other than names is declared."""
        s = self.spec
        return any((s.accounts, s.users, s.partitions, s.qos, s.priority, s.backfill, s.queues))


def copies(queue: Queue) -> list[str]:
    """Names of the queues that an entry declares."""
    return [queue.name] if queue.count == 1 else [f"{queue.name}-{k}" for k in range(queue.count)]


def _of(amount: object, flavor: str) -> float:
    """A quota of one flavor; a bare number is of the one flavor that has no name."""
    if isinstance(amount, Mapping):
        return float(amount.get(flavor, 0.0))
    return float(amount) if isinstance(amount, int | float) and not flavor else 0.0


def _borrows_below(spec: Queue | None) -> float:
    """While a queue borrows, it may stop jobs of others with a priority below this (and below the job's own)."""
    if spec is None or spec.borrow_within == "never":
        return -math.inf
    return math.inf if spec.borrow_within_most is None else math.nextafter(spec.borrow_within_most, math.inf)


def _kept(spec: Queue, flavor: str) -> float:
    return max(0.0, _of(spec.gpus, flavor) - _lend(spec, flavor))


def _lend(spec: Queue | Cohort, flavor: str) -> float:
    return math.inf if spec.lend is None else _bound(spec.lend, flavor)


def _borrow(spec: Queue | Cohort, flavor: str) -> float:
    return math.inf if spec.borrow is None else _bound(spec.borrow, flavor)


def _bound(amount: object, flavor: str) -> float:
    if isinstance(amount, Mapping):
        return float(amount.get(flavor, math.inf))
    return float(amount) if isinstance(amount, int | float) else math.inf


class _Shares:
    """The tree of fair shares: accounts with their users as leaves. Row 0 is the root."""

    def __init__(self, declared: Declared, claims: Sequence[Claim]) -> None:
        parents, shares, rows = [-1], [1.0], {"": 0}

        def account(name: str) -> int:
            """Row of an account, added after those of its parents."""
            if name not in rows:
                spec = declared.accounts.get(name)
                above = account(spec.parent) if spec is not None else 0
                rows[name] = len(parents)
                parents.append(above)
                shares.append(spec.shares if spec is not None else 1.0)
            return rows[name]

        users: dict[tuple[str, str], int] = {}

        def user(name: str, of: str) -> int:
            """Row of a user of an account."""
            if (of, name) not in users:
                above = account(of)
                users[of, name] = len(parents)
                parents.append(above)
                spec = declared.users.get((of, name))
                shares.append(spec.shares if spec is not None else 1.0)
            return users[of, name]

        for spec in declared.spec.users:
            user(spec.name, spec.account)
        self.leaf: Ints = np.array([user(claim[0], claim[1]) for claim in claims], dtype=np.int64)
        self.parent: Ints = np.array(parents, dtype=np.int64)
        self.shares = np.array(shares)
