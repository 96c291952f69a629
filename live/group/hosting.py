"""The store of a job: where it listens, and the token under which the members of the job find each other."""

from __future__ import annotations

import datetime
import os
import secrets
import socket

import torch.distributed as dist

from equipoise.base.numerals import strict_int

StoreGoneError = dist.DistError  # raised by a client whose store is gone
TOKEN = "EQUIPOISE_TOKEN"  # the environment variable that holds it
WORKER = "EQUIPOISE_WORKER"  # the one that holds the name that a launcher gave to the process
DESERTED = "deserted"  # key of the store: no member is left to admit others
_TIMEOUT = datetime.timedelta(seconds=60)


def host_store(host: str, port: int = 0) -> dist.TCPStore:
    """A store that listens on `host` only (PyTorch's own listens on every interface); port 0: a free one.

    Raises OSError when the address is not this machine's, or the port is taken.
    """
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.create_server(address[:2], family=family)
    return dist.TCPStore(
        host,
        listening.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        timeout=_TIMEOUT,
        master_listen_fd=listening.detach(),
    )


def reach_store(host: str, port: int) -> dist.TCPStore:
    """A client of the store at that address. Raises torch.distributed.DistError if none answers."""
    return dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=_TIMEOUT)


def of_job(store: dist.Store, token: str) -> dist.Store:
    """The part of a store that belongs to the job with that token; an empty token: to jobs without one."""
    return dist.PrefixStore(f"equipoise/{token}" if token else "equipoise", store)


class Eras:
    """The job's part of a store by era: when no member is left, the job begins again in the next era."""

    def __init__(self, server: dist.Store, token: str) -> None:
        """Enter the running era, or the next one if no member is left."""
        self._base, self._name = of_job(server, token), token
        self._server = server
        self._era = int(self._base.compare_set("era", "", "0"))
        if self.store.check([DESERTED]):
            self.next()

    @property
    def token(self) -> str:
        """The token of the era's members."""
        return f"{self._name}.{self._era}" if self._era else self._name

    @property
    def store(self) -> dist.Store:
        """The part of the store shared by the era's members."""
        return of_job(self._server, self.token)

    def next(self) -> dist.Store:
        """Enter the next era; another launcher may have begun it."""
        before = str(self._era)
        self._era = int(self._base.compare_set("era", before, str(self._era + 1)))
        return self.store


def own_token() -> str:
    """The job's token from the environment, else a new one."""
    return os.environ.get(TOKEN) or secrets.token_hex(16)


def address() -> tuple[str, int]:
    """Host and port of the job's store."""
    given = os.environ.get("EQUIPOISE_STORE") or f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    host, _, port = given.rpartition(":")
    return host, strict_int(port)


def is_hosted() -> bool:
    """Whether a launcher hosts the store; else rank 0 does."""
    return "EQUIPOISE_STORE" in os.environ or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def job_store(hosts: bool = False) -> dist.Store:
    """The job's part of the store."""
    token = os.environ[TOKEN] if "EQUIPOISE_STORE" in os.environ else os.environ.get(TOKEN, "")
    # torchrun restarts all ranks on the store that holds the keys of the dead ones.
    again = "" if "EQUIPOISE_STORE" in os.environ else os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return of_job((host_store if hosts else reach_store)(*address()), f"{token}.{again}" if again.strip("0") else token)
