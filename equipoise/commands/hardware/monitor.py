"""monitor: utilization of this machine's GPUs, and what limits them."""

from __future__ import annotations

import math

import click

from equipoise.base.metrics_server import ListenError
from equipoise.base.numerals import is_index
from equipoise.calibrate.monitor.view import show
from equipoise.commands.types import FloatRange, IntRange
from equipoise.options import WrongInputError, common


def _address(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, int] | None:
    """ "PORT" or "HOST:PORT"; without a host, listen on this machine only."""
    if value is None:
        return None
    host, _, port = value.rpartition(":")
    if not is_index(port) or int(port) > 65535:
        raise click.BadParameter(f"{value!r} is neither PORT nor HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


@click.command()
@click.option("--interval", "interval_s", default=1.0, show_default=True, type=FloatRange(0.1), help="Seconds.")
@click.option("--count", type=IntRange(1), help="Stop after this many readings (default: never).")
@click.option("--format", "form", type=click.Choice(["table", "jsonl"]), default="table", show_default=True)
@click.option("--listen", metavar="[HOST:]PORT", callback=_address, help="Also serve Prometheus at /metrics.")
@click.option("--price", type=FloatRange(0), help="USD per GPU-hour, to show the cost of the idle part.")
@click.option("--gpu", "only", multiple=True, type=IntRange(0), help="Only this GPU; may be repeated.")
@common
def monitor(
    interval_s: float,
    count: int | None,
    form: str,
    listen: tuple[str, int] | None,
    price: float | None,
    only: tuple[int, ...],
) -> None:
    """Show the utilization of the GPUs' units, and what limits each GPU.

    Per GPU and MIG instance: SM activity, occupancy, tensor, FP64, FP32 and FP16 pipes, memory and link
    traffic (hardware counters on Hopper and later; column "from" says gpm), power, temperature, clock,
    memory, processes. A dash means that the device does not give the value.
    """

    if not math.isfinite(interval_s) or math.isnan(price or 0.0):
        raise click.UsageError("--interval and --price: nan and inf are not allowed")
    try:
        show(
            interval_s=interval_s,
            count=count,
            output=form,
            price_usd_per_h=price,
            listen=listen,
            only=frozenset(only) or None,
        )
    except ListenError as error:
        raise WrongInputError(f"--listen {error}") from None
