"""Gradient statistics on selected steps: norms, and the noise scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

_PART = 1 << 18  # elements that are summed up in a gradient's own precision


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
    exchanged one.

    Only the parameter whose gradient comes last has a hook; it is learnt on measured
    steps, in which every parameter has one.
    """

    def __init__(
        self,
        leaves: Iterable[torch.Tensor],
        exchanged: Callable[[], Iterable[torch.Tensor]],
        on_local: Callable[[], None],
        on_done: Callable[[], None],
    ) -> None:
        """`leaves`: where local gradients accumulate; `exchanged`: returns the gradients after the exchange."""
        self._parameters, self._exchanged = [p for p in leaves if p.requires_grad], exchanged
        self._on_local, self._on_done = on_local, on_done
        self._squares: dict[int, torch.Tensor | float] = {}
        self._handles: list[Any] = []
        self._queued = False
        self._last = 0
        self._measuring = False
        self.part = (0, 1)  # this rank and the ranks in all
        self.local_square = self.mean_square = math.nan  # of the last pass, where it was measured
        self.measure(True)

    def measure(self, wanted: bool) -> None:
        """Measure squared gradient norms in the next backward passes, or stop."""
        if wanted == self._measuring:
            return
        self.close()
        self._measuring = wanted
        watched = range(len(self._parameters)) if wanted else [self._last]
        for k in watched:
            if k < len(self._parameters):
                hook = self._hook(k)
                self._handles.append(self._parameters[k].register_post_accumulate_grad_hook(hook))
        self._squares.clear()

    def reset(self) -> None:
        """Discard an interrupted backward pass."""
        self._queued = False
        self.local_square = self.mean_square = math.nan

    def close(self) -> None:
        """Remove every hook."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._measuring = False

    def _hook(self, k: int) -> Callable[[torch.Tensor], None]:
        def ready(parameter: torch.Tensor) -> None:
            """Keep the square of a parameter's local gradient."""
            # Runs before the exchange reads the gradient, so this is the local one.
            if self._measuring and parameter.grad is not None:
                self._squares[k] = _square(parameter.grad)
                self._last = k
            self._on_local()
            if not self._queued:
                self._queued = True
                queue = torch.autograd.Variable._execution_engine.queue_callback
                # The exchange ends in a callback that is queued later in this pass; ours must follow it.
                queue(lambda: queue(self._finish))

        return ready

    def _finish(self) -> None:
        self._queued = False
        self._on_done()
        if self._measuring:
            self.local_square = _total(self._squares.values())
            # After the exchange all ranks hold the same, so each takes a part; the parts are summed.
            self.mean_square = _total(_square(_part(gradient, *self.part)) for gradient in self._exchanged())


def _part(gradient: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    """This rank's part of the elements; the parts of all ranks cover them, and the first takes the remainder."""
    if gradient.is_sparse or not gradient.is_contiguous():
        return gradient if rank == 0 else gradient.new_zeros(1).to_dense()
    flat = gradient.detach().view(-1)
    return flat[rank * len(flat) // ranks : (rank + 1) * len(flat) // ranks]


def _total(squares: Iterable[torch.Tensor | float]) -> float:
    """Sum; infinity when it is not finite, because NaN means not measured."""
    total = float(sum(float(square) for square in squares))
    return total if math.isfinite(total) else math.inf


def _square(gradient: torch.Tensor) -> torch.Tensor | float:
    dense = gradient.coalesce().values() if gradient.is_sparse else gradient
    if dense.device.type == "cpu" and dense.dtype in (torch.float32, torch.float64) and dense.is_contiguous():
        # Half the time of `vector_norm` on a processor, and exact to 1e-6 where that is off by 1e-3.
        return sum(float(torch.dot(part, part)) for part in dense.detach().view(-1).split(_PART))
    wide = torch.float32 if dense.dtype in (torch.float16, torch.bfloat16) else None
    return torch.linalg.vector_norm(dense.detach(), dtype=wide).square()
