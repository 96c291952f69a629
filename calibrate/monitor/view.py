"""The live view of all GPUs: a table, JSON lines, or Prometheus."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from equipoise.base.metrics_server import MetricsServer
from equipoise.calibrate.device import nvml
from equipoise.calibrate.monitor.diagnosis import Diagnosis, diagnose
from equipoise.calibrate.monitor.exposition import as_json_line, as_metrics
from equipoise.calibrate.monitor.readings import Reading, Sampler

if TYPE_CHECKING:
    from rich.table import Table

Row = tuple[Reading, Diagnosis]
PIPE_WIDTH = 240

PERCENT_COLUMNS = (
    ("SM", "PROF_SM_ACTIVE"),
    ("occup", "PROF_SM_OCCUPANCY"),
    ("tensor", "PROF_PIPE_TENSOR_ACTIVE"),
    ("FP64", "PROF_PIPE_FP64_ACTIVE"),
    ("FP32", "PROF_PIPE_FP32_ACTIVE"),
    ("FP16", "PROF_PIPE_FP16_ACTIVE"),
    ("DRAM", "PROF_DRAM_ACTIVE"),
)


def readings(
    interval_s: float, count: int | None, price_usd_per_h: float | None = None, only: frozenset[int] | None = None
) -> Iterator[list[Row]]:
    """All GPUs and instances every `interval_s`, `count` times or for ever. Needs an open NVML session.

    Raises NvmlUnavailableError when there is no such GPU.
    """
    found = nvml.gpus()
    absent = (only or frozenset()) - {gpu.index for gpu in found}
    if not found or absent:
        wanted = f"GPU {min(absent)}" if absent else "GPU"
        raise nvml.NvmlUnavailableError(f"the driver shows no {wanted}; it shows {len(found)}")
    samplers = [Sampler(gpu) for gpu in found if only is None or gpu.index in only]
    try:
        for sampler in samplers:
            sampler.read()  # GPM and energy need a first sample
        shown = 0
        while count is None or shown < count:
            time.sleep(interval_s)
            rows = [sampler.read() for sampler in samplers]
            yield [(row, diagnose(row, price_usd_per_h)) for row in rows]
            shown += 1
    finally:
        for sampler in samplers:
            sampler.close()


def as_table(rows: list[Row], versions: nvml.Versions) -> Table:
    """A table for the terminal. An em dash means that the device does not give the value."""
    from rich.table import Table

    table = Table(title=f"driver {versions.driver}, CUDA {versions.cuda_driver}", expand=False)
    for name in ("GPU", "from", *(title for title, _ in PERCENT_COLUMNS), "any kernel"):
        table.add_column(name, justify="left" if name in ("GPU", "from") else "right", no_wrap=True)
    for name in ("PCIe out/in", "NVLink out/in", "power", "temp", "SM clock", "memory", "limit"):
        table.add_column(name, justify="left" if name == "limit" else "right")
    for reading, diagnosis in rows:
        table.add_row(*_cells(reading, diagnosis))
        for line in _process_lines(reading):
            table.add_row(line, style="dim")
    return table


def _cells(r: Reading, diagnosis: Diagnosis) -> list[str]:
    percents = [_format(r.get(field), "{:.0%}") for _, field in PERCENT_COLUMNS]
    util = r.get("DEV_GPU_UTIL")
    return [
        f"{r.gpu.label} {r.gpu.name}",
        "gpm" if r.sources.get("DCGM_FI_PROF_SM_ACTIVE") == "gpm" else "nvml",
        *percents,
        _format(None if util is None else util / 100.0, "{:.0%}"),
        _traffic(r, "PCIE"),
        _traffic(r, "NVLINK"),
        _format(r.get("DEV_POWER_USAGE"), "{:.0f} W"),
        _format(r.get("DEV_GPU_TEMP"), "{:.0f} C"),
        _format(r.get("DEV_SM_CLOCK"), "{:.0f} MHz"),
        f"{_format(r.get('DEV_FB_USED'), '{:.0f}')}/{_format(r.get('DEV_FB_TOTAL'), '{:.0f}')} MiB",
        str(diagnosis),
    ]


def _format(value: float | None, pattern: str) -> str:
    return "—" if value is None else pattern.format(value)


def _traffic(r: Reading, link: str) -> str:
    rates = (r.get(f"PROF_{link}_TX_BYTES"), r.get(f"PROF_{link}_RX_BYTES"))
    texts = [_format(None if rate is None else rate / 1e9, "{:.1f}") for rate in rates]
    return "—" if texts == ["—", "—"] else f"{'/'.join(texts)} GB/s"


def _process_lines(r: Reading) -> Iterator[str]:
    for process in r.processes:
        where = "" if process.instance_id is None else f" in instance {process.instance_id}"
        memory = "—" if process.memory_bytes is None else f"{process.memory_bytes / nvml.MIB:.0f} MiB"
        share = _format(process.sm_share, "{:.0%} of time slots")
        yield f"  {process.pid} {process_name(process.pid)}{where}: {memory}, {share}"


def process_name(pid: int) -> str:
    """The command's name, or "?" when it is gone or another user's."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() or "?"
    except OSError:
        return "?"


def show(
    *,
    interval_s: float,
    count: int | None,
    output: str,
    price_usd_per_h: float | None,
    listen: tuple[str, int] | None,
    only: frozenset[int] | None,
    stream: TextIO | None = None,
) -> None:
    """Print readings until `count` is reached or the user interrupts.

    Raises NvmlUnavailableError, and ListenError when the address to listen on is taken.
    """
    out = stream or sys.stdout
    with nvml.session() as versions:
        server = MetricsServer(*listen) if listen else None
        try:
            if server:
                print(f"listening on {listen[0] if listen else ''}:{server.port}/metrics", file=sys.stderr, flush=True)
            rows = readings(interval_s, count, price_usd_per_h, only)
            if output == "table":
                _show_table(rows, versions, server, out)
                return
            for batch in rows:
                _serve(server, batch)
                for reading, diagnosis in batch:
                    print(as_json_line(reading, diagnosis), file=out, flush=True)
        finally:
            if server:
                server.close()


def _show_table(rows: Iterator[list[Row]], versions: nvml.Versions, server: MetricsServer | None, out: TextIO) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(file=out)
    if not console.is_terminal:  # a file or a pipe gets one table after the other
        console = Console(file=out, width=PIPE_WIDTH)
        for batch in rows:
            _serve(server, batch)
            console.print(as_table(batch, versions))
        return
    with Live(console=console, auto_refresh=False, transient=False) as live:
        for batch in rows:
            _serve(server, batch)
            live.update(as_table(batch, versions), refresh=True)


def _serve(server: MetricsServer | None, batch: list[Row]) -> None:
    if server:
        server.update(as_metrics(batch))
