"""How the learning rate of a job follows its batch, by name."""

from typing import Literal, get_args

RateRule = Literal["adascale", "sqrt", "linear", "none", "script"]
RULES: tuple[RateRule, ...] = get_args(RateRule)
"""How a job's learning rate follows its batch: by the gain of AdaScale (SGD), the square root (adaptive), in
proportion, or not at all; or the training script sets it, and a plan cannot. Observations hold the index."""
ADASCALE, SQRT, LINEAR, UNSCALED, SCRIPT = range(len(RULES))
