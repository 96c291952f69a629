"""Number types for options: click's own types also accept Python syntax such as `1_0` for 10."""

from __future__ import annotations

import math
from typing import Any

import click

from equipoise.base.numerals import strict_float, strict_int


class IntRange(click.IntRange):
    """A whole number in a range, in ASCII digits."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number. Raises click.BadParameter."""
        if isinstance(value, str):
            try:
                value = strict_int(value)
            except ValueError as error:
                self.fail(str(error), param, ctx)
        return super().convert(value, param, ctx)


class FloatRange(click.FloatRange):
    """A finite number in a range, in ASCII digits."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number. Raises click.BadParameter."""
        if isinstance(value, str):
            try:
                value = strict_float(value)
            except ValueError as error:
                self.fail(str(error), param, ctx)
            if not math.isfinite(value):
                self.fail(f"{value} is not a finite number", param, ctx)
        return super().convert(value, param, ctx)
