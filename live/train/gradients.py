"""Gradient statistics on selected steps: norms, and the noise scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch

Square: TypeAlias = torch.Tensor | float


def noise_statistics(
    local_squares: Sequence[float], mean_square: float, samples: Sequence[float]
) -> tuple[float, float]:
    """Trace of the per-sample gradient covariance S and squared norm of the true gradient |G|^2.

    `local_squares[r]` = |g_r|^2 of rank r's mean gradient over `samples[r]`; `mean_square` = |sum_r n_r/B
    g_r|^2. E|g_r|^2 = |G|^2 + S/n_r holds for any split, so with A = sum_r (n_r/B)|g_r|^2 over the R ranks
    that hold samples, S = B (A - mean_square) / (R - 1) and |G|^2 = mean_square - S/B are unbiased
    (generalises McCandlish et al. 2018, appendix A.1, to unequal batches). NaN with fewer than two ranks.
    """
    total = math.fsum(samples)
    some = [(n, square) for n, square in zip(samples, local_squares, strict=True) if n > 0]
    if len(some) < 2:
        return math.nan, math.nan
    weighted = math.fsum(n / total * square for n, square in some)
    covariance_trace = total * (weighted - mean_square) / (len(some) - 1)
    return covariance_trace, mean_square - covariance_trace / total


def mean_of_pairs(old: tuple[float, float], new: tuple[float, float], keep: float) -> tuple[float, float]:
    """Exponential mean of two numbers, separately; `new` if `old` is unknown."""
    if math.isnan(old[0]):
        return new
    return keep * old[0] + (1 - keep) * new[0], keep * old[1] + (1 - keep) * new[1]


class NoiseScale:
    """Gradient noise scale phi = S / |G|^2 in samples, each part smoothed before the division.

    The ratio of two noisy estimates is biased; smoothing first follows McCandlish et al. 2018, appendix A.1.
    """

    def __init__(self, keep: float = 0.9) -> None:
        self.keep = keep
        self.parts: tuple[float, float] = (math.nan, math.nan)  # smoothed S and |G|^2

    def add(self, covariance_trace: float, true_square: float) -> None:
        """Take one measurement; one that is not finite is ignored."""
        new = (covariance_trace, true_square)
        if not all(math.isfinite(v) for v in new):
            return
        self.parts = mean_of_pairs(self.parts, new, self.keep)

    @property
    def value(self) -> float:
        """phi in samples, or NaN while it is unknown (no measurement, or no positive parts)."""
        covariance_trace, true_square = self.parts
        return covariance_trace / true_square if covariance_trace > 0 and true_square > 0 else math.nan


class BackwardProbe:
    """Reports when a backward pass has its local gradients, when they are exchanged, and their norms.

    `local_square` is |g|^2 of this rank's gradient, `mean_square` this rank's part (see `part`) of that of the
    exchanged one: tensors, which the device may not have computed yet.

    Only the parameter whose gradient comes last in a pass has a hook (one for each pass of a round); it is learnt
    in a round in which every parameter has one, again if none of them got a gradient in a round. The local
    gradients are complete when the pass has ended, right before DistributedDataParallel waits for the exchange:
    what a rank computes after its last gradient is its own time. Where the exchange runs inside the pass
    (`exchanges_inside`), they are complete at the last gradient.
    """

    def __init__(
        self,
        leaves: Iterable[torch.Tensor],
        exchanged: Callable[[], Iterable[torch.Tensor]],
        on_local: Callable[[], None],
        on_done: Callable[[], None],
        *,
        one_by_one: bool = False,
        exchanges_inside: Callable[[], bool] = lambda: False,
    ) -> None:
        """`leaves`: where local gradients accumulate; `exchanged`: returns the gradients after the exchange.

        `one_by_one`: gradients do not stay in `.grad` up to the last one, because buckets hold them, or because they
        are cut into parts.
        """
        self._parameters, self._exchanged = [p for p in leaves if p.requires_grad], exchanged
        self._on_local, self._on_done, self._one_by_one = on_local, on_done, one_by_one
        self._inside, self._is_inside = exchanges_inside, exchanges_inside()  # the latter in this round
        self._norms: list[torch.Tensor] = []
        self._handles: list[Any] = []
        self._queued = self._measuring = self._seen = False
        self._learning = True
        self._latest, self._lasts = 0, set[int]()  # parameters: of this pass so far, and of each pass of a round
        self.part = (0, 1)  # this rank and the ranks in all
        self.local_square: Square = math.nan  # of the last pass, where it was measured
        self.mean_square: Square = math.nan
        self._watch(range(len(self._parameters)))

    def begin(self) -> None:
        """Begin a round, in which nothing is measured so far."""
        if (self._measuring and self._one_by_one) or (self._learning and self._seen):
            self._learning = False
            self._watch(sorted(self._lasts))
        elif not self._seen and not self._learning:
            self._learning = True
            self._lasts.clear()
            self._watch(range(len(self._parameters)))
        self._queued = self._measuring = self._seen = False
        self._is_inside = self._inside()
        self.local_square = self.mean_square = math.nan

    def measure(self) -> None:
        """Measure squared gradient norms in the backward pass of this round."""
        self._measuring = True
        self._norms.clear()
        if self._one_by_one:
            self._watch(range(len(self._parameters)))

    def close(self) -> None:
        """Remove every hook."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _watch(self, chosen: Iterable[int]) -> None:
        self.close()
        for k in chosen:
            if k < len(self._parameters):
                self._handles.append(self._parameters[k].register_post_accumulate_grad_hook(self._hook(k)))

    def _hook(self, k: int) -> Callable[[torch.Tensor], None]:
        def ready(parameter: torch.Tensor) -> None:
            """Note a parameter's local gradient."""
            # Runs before the exchange reads the gradient, so this is the local one.
            self._latest, self._seen = k, True
            if self._measuring and self._one_by_one and parameter.grad is not None:
                self._norms += _norms([parameter.grad])
            if self._is_inside:
                self._on_local()
            if not self._queued:
                self._queued = True
                torch.autograd.Variable._execution_engine.queue_callback(self._computed)
            if self._measuring and not self._one_by_one and not self._learning:
                # All others are there, too, and stay in `.grad` until the exchange has ended.
                self._norms = _norms([p.grad for p in self._parameters if p.grad is not None])

        return ready

    def _computed(self) -> None:
        if self._learning:
            self._lasts.add(self._latest)
        if not self._is_inside:
            self._on_local()
        # The exchange ends in a callback that is queued after this one; ours must follow it.
        torch.autograd.Variable._execution_engine.queue_callback(self._finish)

    def _finish(self) -> None:
        self._queued = False
        self._on_done()
        if self._measuring and self._norms:
            self.local_square = _total(self._norms)
            # After the exchange all ranks hold the same, so each takes a part; the parts are summed.
            rank, ranks = self.part
            self.mean_square = _total(_norms(list(self._exchanged())[rank::ranks]))


def _norms(gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    dense = [(g.coalesce().values() if g.is_sparse else g).detach() for g in gradients]
    halves = any(g.dtype in (torch.float16, torch.bfloat16) for g in dense)
    return list(torch._foreach_norm(dense, 2, dtype=torch.float32 if halves else None)) if dense else []


def _total(norms: Sequence[torch.Tensor]) -> Square:
    """Sum of squares, on its way to the host; infinity when it is not finite, because NaN means not measured."""
    if not norms:
        return 0.0
    total = torch.stack([norm.double() for norm in norms] if len({n.dtype for n in norms}) > 1 else list(norms))
    found: torch.Tensor = total.square().sum().nan_to_num(nan=math.inf)
    return found.to("cpu", non_blocking=True)
