"""Share of an accelerator's peak that models of a kind reach in training, by published measurements.

A pass of `flop` FLOP takes flop / (share * peak) + flop / (flop_per_byte * memory bandwidth): one part of its
layers is bound by products, the other by memory, one after the other (roofline by layer, Williams et al. 2009).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from equipoise.sim.hardware.profile import Accelerator
from equipoise.sim.scenario.model import Model


@dataclass(frozen=True, slots=True)
class ModelKind:
    """Constants of a kind of model; `low` and `high` bound the rates of measured rows over what these give.

    families: of models among them. power_share: of the highest power beyond idling that a GPU draws while it computes.
    """

    share: float
    flop_per_byte: float
    low: float
    high: float
    origin: str
    families: int
    power_share: float = 1.0

    def seconds(self, accelerator: Accelerator, precision: str, flop: float) -> float:
        """Seconds of a pass of `flop` FLOP; products in full precision reach the share of large products."""
        share = accelerator.efficiency_at(flop) if precision in ("fp32", "fp64") else self.share
        products_s = flop / (share * accelerator.peak_flop_per_s(precision))
        return products_s + flop / (self.flop_per_byte * accelerator.hbm_bytes_per_s.value)


LARGE_PRODUCTS = "large-products"
"""The accelerator's own curve of large products: an upper bound, which no whole step reaches."""
_LARGE = (
    "published runs of seven families of dense decoders on A100 and H100, of 7 to 530 billion parameters: whole steps, "
    "exchanges among them, reach 0.38 to 0.57 of the peak"
)
_CONVOLUTIONAL = (
    "form: ResNet-50 in MLPerf Training on 15 GPUs, median error 7 %; level: ResNet-50 in plain PyTorch on H100, "
    "and in Pollux on A100, RTX 6000, RTX 2080 Ti and T4; high: MLPerf, tuned"
)
_TRANSFORMER = (
    "form: BERT in MLPerf Training on 11 GPUs, median error 14 %; level: BERT base, ViT-L and GPT-2 medium in "
    "plain PyTorch on an H100"
)
_RECOMMENDER = (
    "DLRM and DLRM-DCNv2 in MLPerf Training, tuned, on up to 16 GPUs with their exchange of embeddings, median "
    "error 9 %"
)
_DIFFUSION = "Stable Diffusion in MLPerf Training, tuned, on up to 16 H100, H200, B200 or GB200, median error 1 %"
KINDS = {
    "convolutional": ModelKind(0.234, 31.4, 0.87, 2.4, _CONVOLUTIONAL, 1, 0.78),
    "small-transformer": ModelKind(0.217, 51.0, 0.75, 1.5, _TRANSFORMER, 3, 0.88),
    "large-transformer": ModelKind(0.465, math.inf, 0.82, 1.225, _LARGE, 7),
    "recommender": ModelKind(1.0, 33.0, 0.45, 1.4, _RECOMMENDER, 2),
    "diffusion": ModelKind(0.709, 110.0, 0.9, 1.0, _DIFFUSION, 1),
}
"""Fitted to MLPerf Training v0.7 to v5.0 (medians by GPU, least absolute error in the logarithm). FLOP of a sample,
forward and backward: ResNet-50 24.6e9, BERT large 1.1e12, DLRM 14.4e6, DCNv2 96e6, Stable Diffusion 2.1e12.
Shares of power: medians of ResNet-50 and BERT base under no limit on an A40, a P100 and a V100 (You et al., NSDI 2023):
0.59 to 0.86 and 0.65 to 0.89. Of recommenders 0 to 0.2 were measured in plain PyTorch, about 1 in tuned software."""


def power_share(model: Model) -> float:
    """Share of the highest power beyond idling that computing draws: the model's own, else that of its kind."""
    if model.power_share is not None:
        return model.power_share
    kind = KINDS.get(model.kind or "")
    return 1.0 if kind is None else kind.power_share
