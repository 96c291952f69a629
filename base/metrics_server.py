"""Metrics for Prometheus over HTTP, by its own client library."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable, Sequence
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client.core import CollectorRegistry, Metric
from prometheus_client.exposition import ThreadingWSGIServer, make_wsgi_app

CONNECTIONS_MAX = 8
"""Connections that are answered at a time; further ones are closed."""
SILENCE_MAX_S = 5.0
"""A connection that sends nothing for so long is closed."""


class ListenError(OSError):
    """The address cannot be bound; its text is one line that names the address."""


class MetricsServer:
    """Serves the metrics of the last `update` on `/metrics`, from daemon threads."""

    def __init__(self, host: str, port: int) -> None:
        """Raises ListenError when the address cannot be bound. Port 0 picks a free one, see `port`."""
        self._metrics: Sequence[Metric] = ()
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        try:
            self._server = make_server(host, port, make_wsgi_app(registry), _BoundedServer, _QuietHandler)
        except OSError as error:
            raise ListenError(f"{host}:{port}: {error.strerror or error}") from None
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="equipoise-metrics", daemon=True).start()

    def collect(self) -> Iterable[Metric]:
        """The current metrics, for the registry."""
        return self._metrics

    def update(self, metrics: Iterable[Metric]) -> None:
        """Serve these metrics from now on."""
        self._metrics = tuple(metrics)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


class _QuietHandler(WSGIRequestHandler):
    """A request handler without a log line per scrape."""

    timeout = SILENCE_MAX_S

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing."""


class _BoundedServer(ThreadingWSGIServer):
    """Answers `CONNECTIONS_MAX` connections at a time and closes the others."""

    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        self._free = threading.BoundedSemaphore(CONNECTIONS_MAX)
        WSGIServer.__init__(self, address, handler)

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client: Any) -> None:
        """Start a thread for the connection while fewer than `CONNECTIONS_MAX` are open."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: socket.socket | tuple[bytes, socket.socket], client: Any) -> None:
        """Answer one connection."""
        try:
            super().process_request_thread(request, client)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client: Any) -> None:
        """Ignore errors of a connection that breaks off."""
