"""Starts a job whose ranks may die, come back and join, on this machine or on the hosts of a list.

    python -m equipoise.live.group.launch --ranks 4 --max-restarts 3 train.py

The store runs here, so that any rank can die; the others continue, and are told at once which one died. With
`--max-restarts` dead ranks are restarted and join. `--hosts FILE` (lines HOST:RANKS) or `--host-command COMMAND`,
which prints such lines, is read repeatedly: ranks are started on new hosts, and ranks of removed hosts
leave. A further member joins a running job with `--join HOST:PORT train.py` if it has the job's token:
`--token-file` names the file that the first launcher writes it to, or EQUIPOISE_TOKEN holds it for both. Under
torchrun a dead rank ends them all; with its own --max-restarts they resume from the last checkpoint.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from equipoise.base.numerals import plain_numbers
from equipoise.live.group import quiet  # noqa: F401  # first of all
from equipoise.live.group.hosting import TOKEN, StoreGoneError
from equipoise.live.group.hosts import HostList
from equipoise.live.group.launcher import Launcher


class _Parser(argparse.ArgumentParser):
    """Prints errors in one line."""

    def error(self, message: str) -> NoReturn:
        """End with code 2."""
        self.exit(2, f"equipoise: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = _parser()
    given = parser.parse_args(arguments)
    problem = _problem(given)
    if problem:
        parser.error(problem)
    if given.join:
        try:
            token = os.environ[TOKEN] if given.token_file is None else given.token_file.read_text().strip()
        except (KeyError, OSError) as error:
            parser.error(f"--join: needs the job's token, by --token-file or {TOKEN}: {error}")
        os.environ[TOKEN] = token
    listed = None
    if given.hosts is not None or given.host_command is not None:
        try:
            listed = HostList(given.hosts, given.host_command)
        except ValueError as error:
            print(f"equipoise: {error}", file=sys.stderr)
            return 2
        except OSError as error:
            parser.error(f"{error.filename}: {error.strerror}")
    return _launch([sys.executable, given.script, *given.arguments], given, listed)


def _parser() -> argparse.ArgumentParser:
    """The options of the command line."""
    parser = _Parser(prog="python -m equipoise.live.group.launch", description=__doc__.splitlines()[0])
    plain_numbers(parser)
    add = parser.add_argument
    add("--ranks", type=int, default=1, help="processes to start")
    add("--max-restarts", type=int, default=0, help="how many times dead processes are restarted")
    add("--hosts", metavar="FILE", type=Path, help="hosts, one per line, HOST or HOST:RANKS; may change")
    add("--host-command", metavar="COMMAND", help="command that prints lines as in --hosts")
    add("--remote-shell", default="ssh -o BatchMode=yes", help="command that runs sh on another host")
    add("--host", default="127.0.0.1", help="address at which members reach the store")
    add("--store", metavar="HOST:PORT", help="a store hosted elsewhere, for several nodes")
    add("--nodes", type=int, default=1, help="number of nodes, each with a launcher and --ranks processes")
    add("--node-rank", type=int, default=0, help="index of this node, from 0")
    add("--join", metavar="HOST:PORT", help="join the running job whose store has this address")
    add("--token-file", type=Path, help="file to which the job's token is written, or from which --join reads it")
    add("script", help="training script")
    add("arguments", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def _problem(given: argparse.Namespace) -> str | None:
    """Why the options are not valid together, or None."""
    if given.hosts is None and given.host_command is None and not Path(given.script).is_file():
        return f"{given.script}: no such file; needed: a training script"
    if given.ranks < 1:
        return "--ranks: at least 1 is needed"
    if given.max_restarts < 0:
        return "--max-restarts: at least 0 is needed"
    if not 0 <= given.node_rank < given.nodes:
        return f"--node-rank: {given.node_rank} is not allowed; needed: 0 to {given.nodes - 1}"
    if given.nodes > 1 and given.store is None:
        return "--nodes: more than one needs a --store that all of them reach"
    if given.store is not None and TOKEN not in os.environ:
        return f"--store: needs the job's token in {TOKEN}"
    lists = (given.hosts is not None) + (given.host_command is not None)
    if lists > 1 or (lists and (given.nodes > 1 or given.join)):
        return "--hosts: not allowed with --host-command, --nodes or --join"
    return None


def _launch(command: Sequence[str], given: argparse.Namespace, listed: HostList | None) -> int:
    try:
        launcher = Launcher(
            given.host, given.store or given.join, restarts=given.max_restarts, remote=given.remote_shell
        )
        if given.token_file is not None and not given.join:
            _write_secret(given.token_file, launcher.token)
    except (OSError, RuntimeError) as error:
        print(f"equipoise: the store cannot be started on {given.host}: {error}", file=sys.stderr)
        return 1
    if launcher.is_done:
        return 0
    print(f"equipoise: store on {launcher.address}", file=sys.stderr)
    ended = signal.signal(signal.SIGTERM, _end)
    try:
        if given.join:
            launcher.join(command, given.ranks)
        else:
            launcher.start(command, given.ranks, nodes=given.nodes, node=given.node_rank, listed=listed)
        return launcher.wait()
    except KeyboardInterrupt:
        return 130
    except StoreGoneError:  # end as the ranks do, so that a supervisor restarts the job
        print(f"equipoise: the job's store at {launcher.address} is gone; start the job again", file=sys.stderr)
        return 128 + signal.SIGTERM
    finally:
        launcher.stop()
        signal.signal(signal.SIGTERM, ended)


def _end(number: int, frame: object) -> None:
    """On a signal, end the launcher and with it its ranks."""
    raise SystemExit(128 + number)


def _write_secret(path: Path, text: str) -> None:
    """Write a file that only this user can read."""
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
