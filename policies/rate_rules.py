"""How a job's learning rate follows its batch: the names of the rules, and their numbers in observations."""

from __future__ import annotations

from typing import Literal, get_args

RateRule = Literal["adascale", "sqrt", "linear", "none", "script"]
RULES: tuple[RateRule, ...] = get_args(RateRule)
"""The gain of AdaScale (SGD), the square root (adaptive optimizers), in proportion to the batch, left as it is; or
the script that trains sees to it, and no plan can."""
ADASCALE, SQRT, LINEAR, UNSCALED, SCRIPT = range(len(RULES))
