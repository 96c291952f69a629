"""Local SGD whose interval changes on the fly: H local steps, then the replicas' weighted mean.

H = 1 is plain data-parallel training: gradients are exchanged in backward. With H > 1 each rank steps on
its own mean gradient, and after H steps every replica becomes sum_r w_r theta_r, w_r = rank r's part of the
samples of the period (Stich 2019, for unequal batches). For one step of plain SGD both are the same.

With two levels only the ranks of a host exchange after H steps, and all of them at every
`far_every`th exchange (Lin et al. 2020, hierarchical local SGD): a group's mean weighs its samples since all met.

An outer optimiser (Nesterov momentum on the mean movement, Douillard et al. 2023) may follow the mean. Its
gain lr / (1 - momentum) was tuned for a long interval and diverges at a short one; both parameters
therefore fall linearly to 1 and 0, plain averaging, at H = 1, and momentum, which is a sum of movements over
H steps, is rescaled with H.
"""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Iterable, Sequence

import numpy as np
import torch
import torch.distributed as dist

from equipoise.live.train.drift import Movement
from equipoise.live.train.optimizers import Optimizers
from equipoise.live.train.wrapped import Replicated
from equipoise.policies.levels import far_ratio, near_groups

_REFERENCE_INTERVAL = 16


def average(tensors: Iterable[torch.Tensor], weight: float, group: dist.ProcessGroup | None = None) -> None:
    """Replace floating-point tensors by the sum over ranks of weight * tensor, one exchange per dtype.

    A rank of weight 0 contributes true zeros, so that its NaN or infinity goes nowhere. When the exchange
    breaks, no tensor is changed.
    """
    batches, means = _by_kind(tensors), []
    for batch in batches:
        flat = torch.cat([tensor.reshape(-1) for tensor in batch])
        flat = flat.float() if flat.dtype in (torch.float16, torch.bfloat16) else flat
        flat = flat.mul(weight) if weight != 0.0 else torch.zeros_like(flat)
        dist.all_reduce(flat, group=group)
        means.append(flat)
    for batch, flat in zip(batches, means, strict=True):
        parts = flat.split([tensor.numel() for tensor in batch])
        for old, new in zip(batch, parts, strict=True):
            old.copy_(new.view_as(old))


def _by_kind(tensors: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    kinds: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for tensor in tensors:
        if tensor.is_floating_point() and tensor.numel() > 0:
            kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor.detach())
    return list(kinds.values())


def optimizer_tensors(optimizer: Optimizers) -> list[torch.Tensor]:
    """Tensors of an optimiser's state but for counters (moments, also factored ones), in a fixed order."""
    found, kept = [], optimizer.state
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = kept.get(parameter, {})
            tensors = [state[key] for key in sorted(state) if key != "step" and isinstance(state[key], torch.Tensor)]
            found += [tensor for tensor in tensors if tensor.ndim or tensor.shape == parameter.shape]
    return found


_PROBES = 3  # exchanges; the first sets up connections


class Near:
    """The intra-node groups of a job and the communication inside this rank's group."""

    def __init__(self, group: Sequence[int], timeout: datetime.timedelta) -> None:
        """`group` of every rank, from 0. Collective; connecting takes at most `timeout`."""
        self.group = tuple(group)
        self.ratio = far_ratio(np.array(group))  # fraction of the drift left by intra-node exchanges
        rank = dist.get_rank()
        for k in range(max(group) + 1):
            # In the same order on all ranks, as PyTorch requires.
            made = dist.new_group([r for r, g in enumerate(group) if g == k], timeout=timeout)
            if group[rank] == k:
                self.own: dist.ProcessGroup | None = made

    def peers(self, rank: int) -> list[int]:
        """The ranks of a rank's group, including itself."""
        return [r for r, g in enumerate(self.group) if g == self.group[rank]]

    def exchange_s(self, like: Sequence[torch.Tensor]) -> float:
        """Seconds of one exchange of tensors like these inside this rank's group. Collective."""
        flat = torch.zeros(sum(t.numel() for t in like), dtype=like[0].dtype, device=like[0].device)
        took_s = []
        for _ in range(_PROBES):
            dist.barrier(self.own)
            began_s = time.perf_counter()
            dist.all_reduce(flat, group=self.own)
            float(flat[0])  # waits for the device
            took_s.append(time.perf_counter() - began_s)
        return min(took_s)


def groups_by_host(hosts: Sequence[str]) -> list[int] | None:
    """Intra-node group of each rank on these hosts; None: one host, or one rank per host."""
    node = np.unique(np.array(hosts), return_inverse=True)[1].astype(np.int64)
    found = near_groups(node, np.zeros(int(node.max()) + 1, dtype=np.int64))
    return None if found is None else found.tolist()


class LocalSteps:
    """Counts local steps of one replica and exchanges parameters when the interval is full."""

    def __init__(
        self,
        wrapper: Replicated,
        optimizer: Optimizers,
        *,
        outer_lr: float = 1.0,
        outer_momentum: float = 0.0,
        measures: bool = False,
    ) -> None:
        """`measures`: how far replicas move apart (`live.train.drift`)."""
        self._wrapper, self.optimizer = wrapper, optimizer
        self.outer_lr, self.outer_momentum = outer_lr, outer_momentum
        self.interval = 1
        self.near: Near | None = None  # where some ranks are near each other, and may exchange among them
        self.far_every = 1  # of so many exchanges one is of all ranks
        self.done = 0  # local steps since the last exchange
        self._turn = 0  # exchanges of near ranks since the last one of all
        self._samples: list[float] = []  # by rank, since the last exchange of all
        self._near_samples: list[float] = []  # by rank, since the last exchange
        self._last_weights: list[float] = []
        self._start: list[torch.Tensor] = []
        self._velocity: list[torch.Tensor] = []
        self.movement = Movement() if measures else None

    @property
    def alone(self) -> bool:
        """Whether ranks step on their own gradients and exchange parameters instead."""
        return self.interval > 1 or self.far_every > 1

    @property
    def has_outer(self) -> bool:
        """Whether an outer optimiser follows the mean."""
        return self.outer_lr != 1.0 or self.outer_momentum != 0.0

    def outer_parameters(self) -> tuple[float, float]:
        """Learning rate and momentum of the outer optimiser at the present interval."""
        reach = min(1.0, (self.interval * self.far_every - 1) / (_REFERENCE_INTERVAL - 1))
        return 1.0 + (self.outer_lr - 1.0) * reach, self.outer_momentum * reach

    def count(self, samples: Sequence[float]) -> None:
        """A round of `samples` (by rank) was trained on."""
        if not self.alone:
            return  # gradients are weighted one by one
        for kept in (self._samples, self._near_samples):
            if len(kept) != len(samples):
                kept[:] = [0.0] * len(samples)
            kept[:] = [a + b for a, b in zip(kept, samples, strict=True)]

    def weights(self) -> list[float]:
        """Each rank's weight in the mean of all replicas; equal if no samples were counted (`weighted`)."""
        total = math.fsum(self._samples)
        if total == 0:
            return [1.0 / len(self._samples)] * len(self._samples)
        if self.near is None or self._turn == 0:
            return [s / total for s in self._samples]
        inside = self.near_weights()
        return [
            part * math.fsum(self._samples[k] for k in self.near.peers(rank)) / total
            for rank, part in enumerate(inside)
        ]

    def near_weights(self) -> list[float]:
        """Each rank's weight in the mean of its intra-node group."""
        assert self.near is not None
        samples = self._near_samples or [0.0] * len(self.near.group)
        groups = [self.near.peers(rank) for rank in range(len(samples))]
        totals = [math.fsum(samples[k] for k in peers) for peers in groups]
        return [
            n / total if total > 0 else 1.0 / len(peers)  # none had any
            for n, total, peers in zip(samples, totals, groups, strict=True)
        ]

    def will_exchange(self, last: bool) -> bool:
        """Whether the next step is followed by an exchange of parameters; the last of an epoch always is."""
        return self.alone and (self.done + 1 >= self.interval or last)

    def will_meet(self, last: bool) -> bool:
        """Whether that exchange, if there is one, is of all ranks."""
        return last or self._turn + 1 >= self.far_every

    def step(self, last: bool) -> bool:
        """One optimiser step was made; returns whether all replicas are equal now. Collective when they
        exchange."""
        exchange, meet = self.will_exchange(last), self.will_meet(last)
        self.done += 1
        if exchange and not meet:
            self._exchange_near()
            return False
        if exchange:
            self._exchange()
        if exchange or not self.alone:
            self._begin_period()
            return True
        return False

    def meet(self) -> None:
        """Make all replicas and their optimisers' moments equal now. Collective."""
        if not self.alone:
            return
        if self.done > 0 or self._turn > 0:  # replicas differ
            self._exchange()
            self._begin_period()
        if self._last_weights:
            with torch.no_grad():
                average(optimizer_tensors(self.optimizer), self._last_weights[dist.get_rank()])

    def change(self, interval: int, far_every: int = 1) -> None:
        """Use other intervals. Collective; only where all replicas are equal. `far_every` above 1 needs `near`."""
        was_alone, steps = self.alone, self.interval * self.far_every
        if self.movement is not None:
            self.movement.forget()
        self.interval, self.far_every = interval, far_every if self.near is not None else 1
        if was_alone and not self.alone and self._last_weights:
            # With H = 1 replicas stay equal only if their optimisers' moments are.
            with torch.no_grad():
                average(optimizer_tensors(self.optimizer), self._last_weights[dist.get_rank()])
        with torch.no_grad():
            for velocity in self._velocity if was_alone else ():
                velocity.mul_(interval * self.far_every / steps)
        if not was_alone:
            self._velocity = []
        self._begin_period()

    def reset(self, interval: int, far_every: int = 1) -> None:
        """Begin anew from equal replicas and equal moments; without near ranks all meet at every exchange."""
        self.interval, self._velocity, self._last_weights = interval, [], []
        self.far_every = far_every if self.near is not None else 1
        if self.movement is not None:
            self.movement.forget()
        self._begin_period()

    def close(self) -> None:
        """Let the wrapper exchange gradients again."""
        self._wrapper.exchange(True)

    def _begin_period(self) -> None:
        self.done = self._turn = 0
        self._samples, self._near_samples = [], []
        self._wrapper.exchange(not self.alone)
        if self.movement is not None and self.alone:
            self.movement.begin(self._parameters())
        if self.alone and self.has_outer:
            self._start = [p.detach().clone() for p in self._parameters()]
            if not self._velocity:
                self._velocity = [torch.zeros_like(p) for p in self._start]

    def _parameters(self) -> list[torch.Tensor]:
        return [p for p in self._wrapper.module.parameters() if p.requires_grad]

    def _exchange_near(self) -> None:
        assert self.near is not None
        weight = self.near_weights()[dist.get_rank()]
        with torch.no_grad():
            average([*self._parameters(), *self._wrapper.module.buffers()], weight, self.near.own)
        self.done, self._near_samples = 0, []
        self._turn += 1

    def _exchange(self) -> None:
        self._last_weights = self.weights()
        with torch.no_grad():
            parameters, weight = self._parameters(), self._last_weights[dist.get_rank()]
            whole = self._turn * self.interval + self.done == self.interval * self.far_every
            own = self.movement.own(parameters) if self.movement is not None and whole else None
            average([*parameters, *self._wrapper.module.buffers()], weight)
            if self.movement is not None and own is not None:
                self.movement.add(own, parameters, weight)
            if self.has_outer:
                self._outer_step(parameters)

    def _outer_step(self, parameters: list[torch.Tensor]) -> None:
        lr, momentum = self.outer_parameters()
        for start, velocity, parameter in zip(self._start, self._velocity, parameters, strict=True):
            movement = parameter - start
            velocity.mul_(momentum).add_(movement)
            parameter.copy_(start + lr * (movement + momentum * velocity))
