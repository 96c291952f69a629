"""Prometheus metrics of the whole job, served by rank 0, and a copy to MLflow when asked."""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from equipoise.policies.openmetrics import negotiated

CONNECTIONS_MAX = 8  # at a time
SILENCE_MAX_S = 5.0  # of a connection

# name: (type, help). Base units; one value per rank, or one for the job.
METRICS = {
    "equipoise_step_seconds": ("gauge", "Mean local step over the last window, without waiting."),
    "equipoise_wait_seconds": ("gauge", "Mean wait at the exchange per round."),
    "equipoise_input_stall_seconds": ("gauge", "Mean wait for data per round."),
    "equipoise_share_samples": ("gauge", "Samples per round."),
    "equipoise_samples_total": ("counter", "Samples trained."),
    "equipoise_exchange_seconds": ("gauge", "One exchange beyond what backward hides."),
    "equipoise_throughput_samples_per_second": ("gauge", "Samples trained per second by all ranks."),
    "equipoise_sync_interval": ("gauge", "Local steps per exchange."),
    "equipoise_far_every": ("gauge", "Exchanges per exchange of all ranks, not of near ones only."),
    "equipoise_noise_scale_samples": ("gauge", "Gradient noise scale."),
    "equipoise_decisions_total": ("counter", "Decisions made."),
    "equipoise_decision_failures_total": ("counter", "Decisions that failed or were late."),
    "equipoise_ranks": ("gauge", "Ranks in the group."),
}


def exposition(values: Mapping[str, float | Sequence[float]]) -> str:
    """Metrics in Prometheus' text format; a sequence becomes one sample per rank. NaN is left out."""
    lines = []
    for name, (kind, text) in METRICS.items():
        value = values.get(name)
        if value is None:
            continue
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        if isinstance(value, Sequence):
            found = [(f'{{rank="{rank}"}}', float(v)) for rank, v in enumerate(value)]
        else:
            found = [("", float(value))]
        lines += [f"{name}{label} {v!r}" for label, v in found if not math.isnan(v)]
    return "\n".join(lines) + "\n"


class _BoundedServer(ThreadingHTTPServer):
    """Answers a few at a time, and hangs up on everybody else."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._free = threading.BoundedSemaphore(CONNECTIONS_MAX)
        super().__init__(address, handler)

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client: Any) -> None:
        """Start a thread for the connection while there are not too many."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client)
        else:
            self.shutdown_request(request)

    def process_request_thread(
        self, request: socket.socket | tuple[bytes, socket.socket], client: Any
    ) -> None:
        """Answer one connection."""
        try:
            super().process_request_thread(request, client)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client: Any) -> None:
        """A connection that breaks off is no business of the job's."""


class PrometheusServer:
    """Serves the latest metrics on `/metrics` from daemon threads, at most `CONNECTIONS_MAX`."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._text = ""
        owner = self

        class Handler(BaseHTTPRequestHandler):
            """Answers every GET with the latest text."""

            timeout = SILENCE_MAX_S

            def do_GET(self) -> None:
                """Answer a scrape."""
                body, kind = negotiated(owner._text, self.headers.get("Accept"))
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Scrapes are not worth a line on stderr."""

        self._server = _BoundedServer((host, port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="equipoise-metrics", daemon=True).start()

    def update(self, values: Mapping[str, float | Sequence[float]]) -> None:
        """Show these values from now on."""
        self._text = exposition(values)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


class MlflowCopy:
    """Sends the job's metrics to the active MLflow run. Raises ImportError when MLflow is missing."""

    def __init__(self) -> None:
        import mlflow  # type: ignore[import-not-found, unused-ignore]

        self._mlflow = mlflow

    def update(self, values: Mapping[str, float | Sequence[float]], step: int) -> None:
        """Log scalars as they are and per-rank values as `name.rank`."""
        flat: dict[str, float] = {}
        for name, value in values.items():
            if isinstance(value, Sequence):
                flat |= {f"{name}.{rank}": float(v) for rank, v in enumerate(value)}
            else:
                flat[name] = float(value)
        self._mlflow.log_metrics({k: v for k, v in flat.items() if not math.isnan(v)}, step=step)
