"""Event files of the Slurm simulator: `-dt SECONDS -e submit_batch_job | SBATCH OPTIONS`, one event a line."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from equipoise.formats.slurm.values import NOT_GIVEN, gres_gpus, parse_memory, whole
from equipoise.formats.text.columns import Floats, Ints, Text, TextBuilder
from equipoise.formats.text.errors import shown
from equipoise.formats.text.numbers import decimal, limit_s
from equipoise.formats.text.tally import RowTally, TextChange
from equipoise.formats.text.textfile import TextFile

_SHORT = {
    "-J": "job-name",
    "-N": "nodes",
    "-n": "ntasks",
    "-t": "time",
    "-q": "qos",
    "-p": "partition",
    "-A": "account",
    "-c": "cpus-per-task",
    "-G": "gpus",
    "-C": "constraint",
    "-w": "nodelist",
    "-x": "exclude",
    "-d": "dependency",
    "-a": "array",
    "-b": "begin",
    "-L": "licenses",
    "-D": "chdir",
    "-o": "output",
    "-e": "error",
}
_FLAGS = frozenset({"exclusive", "hold", "requeue", "no-requeue", "overcommit", "oversubscribe", "contiguous", "wait"})
Convert = Callable[[str], float | None]
_SUBMIT = "submit_batch_job"


@dataclass(frozen=True, eq=False)
class EventTable:
    """Submitted jobs as equal-length columns, in the order of the file.

    submit_s: from the start of the simulation. run_s: how long the job runs without a limit (`-sim-walltime`), NaN
    where not given. time_limit_s: NaN where not given. tasks, nodes, cpus_per_task, gpus: NOT_GIVEN (-1) where not
    given. memory_bytes: of the whole job. options: every other option of sbatch, by its long name.
    """

    submit_s: Floats
    run_s: Floats
    time_limit_s: Floats
    nodes: Ints
    tasks: Ints
    cpus_per_task: Ints
    gpus: Ints
    gpu_type: Text
    memory_bytes: Ints
    name: Text
    user: Text
    account: Text
    partition: Text
    qos: Text
    line: Ints
    options: Mapping[str, Text] = field(default_factory=dict)
    changes: tuple[TextChange, ...] = ()

    def __len__(self) -> int:
        return len(self.line)


def read_events(source: str | Path | bytes, *, name: str = "") -> EventTable:
    """Submitted jobs of an event file. Raises FormatError when no line of it is an event."""
    tally, file = RowTally(), TextFile(source, name)
    found: list[dict[str, str]] = []
    lines: list[int] = []
    known = 0
    for first, texts in file.chunks(tally):
        for number, line in enumerate(texts, first):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            options = _event(line)
            if isinstance(options, str):
                tally.add("left out", options, number)
                known += options.startswith("another event")
                continue
            found.append(options)
            lines.append(number)
    if not found and not known:
        raise file.error(0, f"no line `-dt SECONDS -e {_SUBMIT} | ...` of the Slurm simulator")
    return _table(found, lines, tally)


def _event(line: str) -> dict[str, str] | str:
    """The options of a submission, or the reason why the line is not one."""
    head, bar, tail = line.partition("|")
    try:
        words, options = shlex.split(head), shlex.split(tail)
    except ValueError:
        return "quotes that do not match"
    before = dict(zip(words[::2], words[1::2], strict=False))
    if not bar or "-dt" not in before or "-e" not in before:
        return "not an event"
    if before["-e"] != _SUBMIT:
        return f"another event than {_SUBMIT}: {before['-e'][:40]}"
    result = _options(options)
    result["-dt"] = before["-dt"]
    if decimal(before["-dt"]) is None:
        return "a -dt value that is not a number"
    return result


def _options(words: list[str]) -> dict[str, str]:
    """sbatch's options by their long names; the script and its arguments are under `script`."""
    result: dict[str, str] = {}
    k = 0
    while k < len(words) and words[k].startswith("-"):
        word, equals, value = words[k].partition("=")
        k += 1
        if word.startswith("--"):
            key = word[2:]
            if not equals and key not in _FLAGS and k < len(words):
                value, k = words[k], k + 1
        elif word in _SHORT or word.startswith("-sim"):
            key = _SHORT.get(word, word)
            if not equals and k < len(words):
                value, k = words[k], k + 1
        else:
            key, value = _SHORT.get(word[:2], word[:2]), words[k - 1][2:]
        result[key] = value
    result["script"] = " ".join(words[k:])
    return result


def _table(found: list[dict[str, str]], lines: list[int], tally: RowTally) -> EventTable:
    gpus = [_gpus(options) for options in found]
    own = {
        "-dt",
        "-sim-walltime",
        "time",
        "nodes",
        "ntasks",
        "cpus-per-task",
        "job-name",
        "uid",
        "account",
        "partition",
        "qos",
        "gres",
        "gpus",
        "gpus-per-node",
        "gpus-per-task",
        "tres-per-node",
        "tres-per-task",
        "mem",
        "mem-per-cpu",
        "ntasks-per-node",
    }
    other = sorted({key for options in found for key in options} - own)

    def text(key: str) -> Text:
        """The texts of one option."""
        return _text([options.get(key, "") for options in found])

    def numbers(key: str, convert: Convert) -> Floats:
        """The numbers of one option."""
        return _numbers(found, lines, key, convert, tally)

    nodes, tasks, each = (numbers(key, _least) for key in ("nodes", "ntasks", "ntasks-per-node"))
    return EventTable(
        submit_s=numbers("-dt", decimal),
        run_s=numbers("-sim-walltime", decimal),
        time_limit_s=numbers("time", limit_s),
        nodes=_whole(nodes),
        tasks=_whole(np.where(np.isnan(tasks), each * np.nan_to_num(nodes, nan=1.0), tasks)),
        cpus_per_task=_whole(numbers("cpus-per-task", _least)),
        gpus=np.array([count for count, _ in gpus], dtype=np.int64),
        gpu_type=_text([kind for _, kind in gpus]),
        memory_bytes=np.array([_memory(options) for options in found], dtype=np.int64),
        name=text("job-name"),
        user=text("uid"),
        account=text("account"),
        partition=text("partition"),
        qos=text("qos"),
        line=np.array(lines, dtype=np.int64),
        options={key: text(key) for key in other},
        changes=tally.changes(),
    )


def _text(values: list[str]) -> Text:
    builder = TextBuilder()
    builder.add(values)
    return builder.finish()


def _numbers(found: list[dict[str, str]], lines: list[int], key: str, convert: object, tally: RowTally) -> Floats:
    assert callable(convert)
    values = np.full(len(found), np.nan)
    for k, options in enumerate(found):
        value = convert(options[key]) if key in options else None
        if value is not None:
            values[k] = value
        elif key in options:
            tally.add("changed", f"{key} is not readable and ignored, such as {shown(options[key])}", lines[k])
    return values


def _least(text: str) -> float | None:
    """The smaller end of `2-4` nodes, or the number."""
    value = whole(text.split("-")[0])
    return None if value == NOT_GIVEN else float(value)


def _whole(values: Floats) -> Ints:
    return np.where(np.isnan(values), NOT_GIVEN, values).astype(np.int64)


def _nodes(options: dict[str, str]) -> int:
    return int(_least(options.get("nodes", "1")) or 1)


def _gpus(options: dict[str, str]) -> tuple[int, str]:
    """(GPUs of the job, their type): `--gpus` counts them all, the others on each node or for each task."""
    nodes, tasks = _nodes(options), _tasks(options)
    for key, times in (
        ("gpus", 1),
        ("gpus-per-node", nodes),
        ("gres", nodes),
        ("tres-per-node", nodes),
        ("gpus-per-task", tasks),
        ("tres-per-task", tasks),
    ):
        if key in options:
            value = options[key]
            count, kind = gres_gpus(f"gpu:{value}" if key.startswith("gpus") else value)
            if count > 0:
                return count * times, kind
    return 0, ""


def _tasks(options: dict[str, str]) -> int:
    """`--ntasks`, else `--ntasks-per-node` on each node, else one."""
    if "ntasks" in options:
        return int(_least(options["ntasks"]) or 1)
    return int(_least(options.get("ntasks-per-node", "1")) or 1) * _nodes(options)


def _memory(options: dict[str, str]) -> int:
    """Bytes of the whole job: `--mem` on each node, `--mem-per-cpu` on each CPU."""
    tasks = _tasks(options) * int(_least(options.get("cpus-per-task", "1")) or 1)
    for key, times in (("mem", _nodes(options)), ("mem-per-cpu", tasks)):
        parsed = parse_memory(options[key]) if key in options else None
        if parsed and parsed[0] * times < 2**62:
            return parsed[0] * times
    return NOT_GIVEN
