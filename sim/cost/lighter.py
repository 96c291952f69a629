"""Cost and savings of pruning, quantisation, distillation and gradient compression.

Compression is bound by the memory that it moves. With S the bytes of the gradient: int8 (Dettmers 2016) reads and
writes it with its residual, 4 S, and both forms of 8 bits; top-k (Aji and Heafield 2017; Lin et al. 2018) reads
both twice, for a threshold and for the choice, and writes the residual, 5 S; PowerSGD (Vogels et al. 2019) reads it
for two products, adds the residual before and after, 6 S. What top-k chooses differs by worker: all is gathered.
Adam's moments in 8 bits (Dettmers et al. 2022) take 2 bytes of a parameter in place of 8. A pruned transformer has
narrower heads and feed-forwards; embeddings, the head and the width of the model stay.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace

from equipoise.sim.hardware.kinds import KINDS
from equipoise.sim.hardware.profile import Accelerator
from equipoise.sim.llm.shape import LatentAttention, Transformer
from equipoise.sim.scenario.model import Model

INDEX_BYTES = 4


def kept(model: Model) -> float:
    """Share of a model's work and weights left after pruning; 1 for a transformer, whose shape is pruned."""
    return 1.0 - model.lighter.pruned if model.transformer is None else 1.0


def pruned_shape(shape: Transformer, part: float) -> Transformer:
    """A transformer with this part of every head and feed-forward taken out."""
    if part == 0.0:
        return shape

    def left(size: int) -> int:
        """The width left after pruning; 0 stays 0."""
        return max(1, round(size * (1.0 - part))) if size else 0

    latent = shape.latent
    if latent is not None:
        latent = LatentAttention(**{f.name: left(getattr(latent, f.name)) for f in fields(latent)})
    ffn, expert_ffn, head_size = left(shape.ffn), left(shape.expert_ffn), left(shape.head_size)
    return replace(shape, ffn=ffn, expert_ffn=expert_ffn, head_size=head_size, latent=latent)


def moment_bytes_saved(model: Model) -> float:
    """Bytes per parameter that moments in 8 bits save."""
    return 6.0 if model.lighter.moments == "int8" else 0.0


def teacher_s(model: Model, accelerator: Accelerator, samples: int) -> float:
    """Seconds of the teacher's forward pass over samples, on one GPU (Hinton et al. 2015)."""
    flop = model.lighter.teacher_flop_per_sample * samples
    if flop == 0.0:
        return 0.0
    if (kind := KINDS.get(model.kind or "")) is not None:
        return kind.seconds(accelerator, model.precision, flop)
    rate = accelerator.peak_flop_per_s(model.precision) * (model.efficiency or accelerator.efficiency_at(flop))
    return flop / rate


def compressed(
    model: Model, workers: int, accelerator: Accelerator, gradient: float, element: int
) -> tuple[float, float]:
    """(bytes sent over bytes of gradient, seconds) of one exchange of a gradient.

    `element`: bytes of one gradient. The share is that of an all-reduce of equal traffic, at most 1.
    """
    lighter = model.lighter
    if lighter.gradients is None or workers < 2:
        return 1.0, 0.0
    if lighter.gradients == "int8":
        share, moved = 1.0 / element, 4.0 + 2.0 / element
    elif lighter.gradients == "top-k":
        share, moved = 0.5 * workers * lighter.density * (1.0 + INDEX_BYTES / element), 5.0
    else:
        share, moved = 2.0 * lighter.rank * 4.0 / element / _side(model), 6.0
    return min(1.0, share), moved * gradient / accelerator.hbm_bytes_per_s.value


def exchange_kept(zero: int, gradient_kept: float) -> float:
    """Bytes of an exchange over those without compression, which leaves `gradient_kept` of a gradient's.

    Parameters are gathered whole: half of the bytes of ZeRO 1 and 2, two thirds of ZeRO 3 (Rajbhandari et al. 2020,
    section 7).
    """
    of_gradients = (1.0, 1 / 2, 1 / 2, 1 / 3)[zero]
    return 1.0 - of_gradients * (1.0 - gradient_kept)


def _side(model: Model) -> float:
    """Rows of a typical weight: the width of a transformer, else of a layer as if all were square."""
    if model.transformer is not None:
        return float(model.transformer.shape().hidden)
    return max(1.0, math.sqrt(model.parameters * kept(model) / model.memory.layers))
