"""A store of shards over HTTP whose paths have a rate, and may cut files off or lose them."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import threading
import time
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_CHUNK_BYTES = 1 << 15


def tar_of(samples: Mapping[str, Mapping[str, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for key, parts in samples.items():
            for extension, content in parts.items():
                info = tarfile.TarInfo(f"{key}.{extension}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def write_shards(folder: Path, samples_of: Sequence[int], sample_bytes: int) -> None:
    """Tar files of so many samples each, whose `id` is their number in the data set, and their index."""
    folder.mkdir(parents=True, exist_ok=True)
    entries, first = [], 0
    for k, count in enumerate(samples_of):
        samples = {f"{n:06d}": {"id": b"%d" % n, "bin": bytes(sample_bytes)} for n in range(first, first + count)}
        content = tar_of(samples)
        first += count
        (folder / f"{k:03d}.tar").write_bytes(content)
        sums = {"filesize": len(content), "md5sum": hashlib.md5(content).hexdigest()}
        entries.append({"url": f"{k:03d}.tar", "nsamples": count, **sums})
    (folder / "index.json").write_text(json.dumps({"shardlist": entries}))


class SlowStore:
    """Serves a folder as http://127.0.0.1:PORT/PATH/FILE; every PATH has a rate (bytes/s), shared by its readers.

    A file's name in `files` overrides what is served: bytes, or None for one that is not there.
    """

    def __init__(self, folder: Path, rates: Mapping[str, float]) -> None:
        self.files: dict[str, bytes | None] = {}
        self.asked: list[tuple[str, str]] = []  # (path, file) in the order in which they were asked for
        self._free_s = dict.fromkeys(rates, 0.0)
        self._lock = threading.Lock()
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *arguments: Any) -> None:
                pass

            def do_HEAD(self) -> None:
                self._answer(send=False)

            def do_GET(self) -> None:
                self._answer(send=True)

            def _answer(self, send: bool) -> None:
                _, path, name = self.path.split("/", 2)
                whole = store.files[name] if name in store.files else _read(folder / name)
                if send:
                    store.asked.append((path, name))
                if whole is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(whole)))
                self.end_headers()
                for at in range(0, len(whole) if send else 0, _CHUNK_BYTES):
                    store._pass(path, min(_CHUNK_BYTES, len(whole) - at) / rates[path])
                    try:
                        self.wfile.write(whole[at : at + _CHUNK_BYTES])
                    except OSError:
                        return

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A reader that was killed is none of the store's errors."""

        self._server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/{path}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _pass(self, path: str, takes_s: float) -> None:
        with self._lock:
            self._free_s[path] = max(self._free_s[path], time.monotonic()) + takes_s
            until_s = self._free_s[path]
        time.sleep(max(0.0, until_s - time.monotonic()))


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None
