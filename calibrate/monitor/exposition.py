"""Readings for machines: JSON lines, and Prometheus' text format over HTTP."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from equipoise.calibrate.monitor.diagnosis import Diagnosis
from equipoise.calibrate.monitor.readings import FIELDS, Reading
from equipoise.policies.openmetrics import negotiated


def as_json_line(reading: Reading, diagnosis: Diagnosis) -> str:
    """One reading as one line of JSON; what is not known is null, with its reason under `missing`."""
    record: dict[str, Any] = {
        "time_s": round(reading.time_s, 3),
        "interval_s": round(reading.interval_s, 3),
        "gpu": reading.gpu.index,
        "instance": reading.gpu.instance or None,
        "uuid": reading.gpu.uuid,
        "name": reading.gpu.name,
        "lost": reading.lost or None,
        "clock_reasons": list(reading.clock_reasons),
        "processes": [
            {
                "pid": p.pid,
                "memory_bytes": p.memory_bytes,
                "time_share": p.sm_share,
                "gpu_instance": p.instance_id,
            }
            for p in reading.processes
        ],
        "limit": diagnosis.limit,
        "evidence": diagnosis.evidence,
        "idle_usd_per_h": diagnosis.idle_usd_per_h,
        **{name: reading.values.get(name) for name in FIELDS},
        "sources": dict(reading.sources),
        "missing": dict(reading.missing),
    }
    return json.dumps(record, allow_nan=False)


def as_prometheus(rows: Iterable[tuple[Reading, Diagnosis]]) -> str:
    """All readings in Prometheus' text format; a value that is not known has no line."""
    pairs = list(rows)
    blocks = [_metric(name, "gauge", "see DCGM", list(_samples(name, pairs))) for name in FIELDS]
    lost = [f"equipoise_gpu_lost{_labels(r)} {int(bool(r.lost))}" for r, _ in pairs]
    blocks.append(_metric("equipoise_gpu_lost", "gauge", "1 while the device does not answer", lost))
    limits = [f"equipoise_gpu_limit{_labels(r, limit=d.limit)} 1" for r, d in pairs]
    blocks.append(_metric("equipoise_gpu_limit", "gauge", "what limits the device", limits))
    cost = [
        f"equipoise_gpu_idle_usd_per_hour{_labels(r)} {d.idle_usd_per_h:.6g}"
        for r, d in pairs
        if d.idle_usd_per_h is not None
    ]
    blocks.append(_metric("equipoise_gpu_idle_usd_per_hour", "gauge", "price of the idle part", cost))
    return "".join(block for block in blocks if block)


def _samples(name: str, pairs: Sequence[tuple[Reading, Diagnosis]]) -> Iterator[str]:
    for reading, _ in pairs:
        value = reading.values.get(name)
        if value is not None and math.isfinite(value):
            source = reading.sources.get(name, "nvml")
            # All digits: the energy counter is in mJ since the driver was loaded, and rates are its differences.
            yield f"{name}{_labels(reading, source=source)} {value:.15g}"


def _metric(name: str, kind: str, text: str, lines: list[str]) -> str:
    return "\n".join([f"# HELP {name} {text}", f"# TYPE {name} {kind}", *lines, ""]) if lines else ""


def _labels(reading: Reading, **more: str) -> str:
    labels = {"gpu": str(reading.gpu.index), "UUID": reading.gpu.uuid, "modelName": reading.gpu.name}
    if reading.gpu.instance:
        labels["GPU_I_ID"] = reading.gpu.instance
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in (labels | more).items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class ListenError(RuntimeError):
    """The address to listen on cannot be had; one line that names it."""


class PrometheusServer:
    """Serves the last text given to `update` at /metrics, from a daemon thread."""

    def __init__(self, host: str, port: int) -> None:
        """Raises ListenError when the address cannot be bound. Port 0 picks a free one, see `port`."""
        self._text = ""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            """Answers one request with the current text."""

            def do_GET(self) -> None:
                """Answer /metrics."""
                found = self.path.split("?")[0] in ("/metrics", "/")
                body, kind = negotiated(outer._text, self.headers.get("Accept"))
                body, kind = (body, kind) if found else (b"only /metrics is here\n", "text/plain")
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:
                """Scrapes are not worth a line each."""

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except OSError as error:
            raise ListenError(f"{host}:{port}: {error.strerror or error}") from None
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def update(self, text: str) -> None:
        """Serve this text from now on."""
        self._text = text

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
