"""Journals and policy files at their borders: how values are written, where files end, where faults are."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from equipoise.policies.contract import UNCHANGED, Decision, Refusal
from equipoise.policies.observation import Jobs, JobState, Labels, Nodes, Observation, Services
from equipoise.policies.record.export import (
    MAX_BYTES,
    ExportedPolicy,
    ExportError,
    _signature,
    digest_of,
    load_policy,
    stage_entries,
    write_policy,
)
from equipoise.policies.record.journal import (
    FORMAT,
    JournalError,
    _complete_bytes,
    _decode,
    _encode,
    _encode_observation,
    append,
    decode_memory,
    encode,
    encode_memory,
    read,
    read_plans,
)
from equipoise.policies.registry import make_policy

NAN, INF = math.nan, math.inf

# -- values ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.array([2.5, 2.5]), {"$array": "float64", "rows": 2, "all": 2.5}),
        (np.array([2.5]), {"$array": "float64", "values": [2.5]}),
        (np.array([2.5, 2.0]), {"$array": "float64", "values": [2.5, 2.0]}),
        (np.array([NAN, INF, 1.5]), {"$array": "float64", "values": [{"$float": "nan"}, {"$float": "inf"}, 1.5]}),
        (np.array([True, True, True]), {"$array": "bool", "rows": 3, "all": True}),
        (np.array([7, 7], dtype=np.int8), {"$array": "int8", "rows": 2, "all": 7}),
        (np.array([7, 7], dtype=np.uint16), {"$array": "uint16", "rows": 2, "all": 7}),
        (np.array(["ab", "ab"]), {"$array": "<U2", "values": ["ab", "ab"]}),
        (np.array([[4.0, 4.0]]), {"$array": "float64", "shape": [1, 2], "values": [4.0, 4.0]}),
        (np.array([[3, 5], [6, 8]]), {"$array": "int64", "shape": [2, 2], "values": [3, 5, 6, 8]}),
        (np.array([]), {"$array": "float64", "values": []}),
        (np.float32(0.5), {"$scalar": {"$array": "float32", "values": [0.5]}}),
        (-INF, {"$float": "-inf"}), (True, True), (3, 3), (None, None), ("t", "t"), (2.5, 2.5),
        (JobState.DONE, int(JobState.DONE)), ({"a": (1, [2.5])}, {"$map": {"a": {"$tuple": [1, [2.5]]}}}),
        (Refusal("a", "b"), {"$Refusal": {"what": "a", "why": "b"}}),
    ],
)  # fmt: skip
def test_how_a_value_is_written(value: Any, expected: Any) -> None:
    found = _encode(value)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize("size", [32, 33, 40])
def test_equal_values_are_written_once_however_many(size: int) -> None:
    one = np.full(size, 1.5)
    assert _encode(one) == {"$array": "float64", "rows": size, "all": 1.5}
    for at in (0, size // 2, size - 1):
        other = one.copy()
        other[at] = NAN
        values = _encode(other)["values"]
        assert (len(values), values[at], values.count(1.5)) == (size, {"$float": "nan"}, size - 1)
        other[at] = -2.0
        assert _encode(other)["values"] == other.tolist()
    assert not _decode(_encode(one)).flags.writeable


def test_what_stages_remember_comes_back() -> None:
    memory = {"0:x": {"a": np.array([1.0, NAN]), "n": 3}, "1:y": {}}
    found = decode_memory(encode_memory(memory))
    assert (list(found), found["0:x"]["n"], found["1:y"]) == (["0:x", "1:y"], 3, {})
    assert np.array_equal(found["0:x"]["a"], memory["0:x"]["a"], equal_nan=True)
    for wrong in (object(), {1: 2}, b"x"):
        with pytest.raises(TypeError, match=r"cannot be written|must be strings"):
            encode_memory({"0:x": {"a": wrong}})


def seen(**more: Any) -> Observation:
    o = Observation.of(3.5, 2.0, jobs=Jobs.of(id=[4, 6]), nodes=Nodes.of(gpus=[2]), gpu_models=("a", "h"))
    for name, value in more.items():
        setattr(o, name, value)
    return o


def test_what_is_not_there_is_not_written() -> None:
    plain = _encode_observation(seen())
    further = {"services", "service_names", "refused", "queues", "told"}
    assert not further & set(plain)
    assert {"nodes", "gpus", "jobs", "workers", "shards", "paths", "speeds", "stores"} <= set(plain)
    more = seen(
        services=Services.of(replicas=[3]), service_names=("chat",), refused=(Refusal("gpu", "gone"),),
        told={"user": Labels(np.array([1, 0]), ("x", "y")), "cpus": np.array([2.0, NAN])},
    )  # fmt: skip
    assert further - {"queues"} == further & set(_encode_observation(more))


def test_all_that_is_observed_comes_back(tmp_path: Path) -> None:
    o = seen(
        services=Services.of(replicas=[3, 5]), service_names=("chat", "code"), refused=(Refusal("gpu", "gone"),),
        told={"user": Labels(np.array([1, 0]), ("x", "y")), "cpus": np.array([2.0, NAN])},
    )  # fmt: skip
    append(
        tmp_path / "j",
        Decision(o, UNCHANGED.with_(revisit_s=7.5), {}, {"0:a": {"b": 1}}),
        [Refusal("a", "b")],
    )
    append(tmp_path / "j", Decision(seen(), UNCHANGED, {"0:a": {"b": 1}}, {}))
    one, two = read(tmp_path / "j")
    found = one.decision.observation
    assert (found.time_s, found.window_s, found.gpu_models) == (3.5, 2.0, ("a", "h"))
    assert (found.services.replicas.tolist(), found.service_names) == ([3, 5], ("chat", "code"))
    assert (found.refused, one.refused, two.refused) == ((Refusal("gpu", "gone"),), (Refusal("a", "b"),), ())
    assert (found.told["user"].names, found.told["user"].codes.tolist()) == (("x", "y"), [1, 0])  # type: ignore[union-attr]
    assert np.array_equal(found.told["cpus"], [2.0, NAN], equal_nan=True)  # type: ignore[arg-type]
    assert (found.waiting.tolist(), found.jobs.id.tolist()) == ([0, 1], [4, 6])
    assert (one.line, two.line, one.decision.memory, two.decision.memory_before) == (
        2, 3, {"0:a": {"b": 1}}, {"0:a": {"b": 1}},
    )  # fmt: skip
    assert (len(two.decision.observation.services), two.decision.observation.told) == (0, {})
    plans = list(read_plans(tmp_path / "j"))
    assert [(time_s, plan.revisit_s, len(refused)) for time_s, plan, refused in plans] == [
        (3.5, 7.5, 1),
        (3.5, INF, 0),
    ]


# -- ends of files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "whole"),
    [
        (b"", 0), (b"\n", 1), (b"ab\n", 3), (b"ab", 0), (b"ab\ncd", 3), (b"ab\ncd\n", 6),
        (b"x" * 10 + b"\n" + b"y" * 65535, 11),  # the last chunk that is read begins with that end
        (b"x" * 10 + b"\n" + b"y" * 65536, 11), (b"x" * 100 + b"\n" + b"y" * 140_000, 101),
        (b"x" * 70_000, 0), (b"x" * 65536, 0), (b"\n" + b"y" * 131_072, 1), (b"x" * 65535 + b"\n", 65536),
    ],
)  # fmt: skip
def test_a_file_ends_with_its_last_whole_line(content: bytes, whole: int) -> None:
    assert _complete_bytes(io.BytesIO(content)) == whole


def test_a_torn_line_is_cut_off_and_a_torn_head_is_written_anew(tmp_path: Path) -> None:
    path, head = tmp_path / "j", b'{"format": "equipoise-journal", "version": 1}\n'
    decision = Decision(seen(), UNCHANGED, {}, {})
    line = encode(decision).encode() + b"\n"
    for before, after in (
        (b"", head + line), (head[:-1], head + line), (head, head + line),
        (head + line + b"torn", head + line + line),
    ):  # fmt: skip
        path.write_bytes(before)
        append(path, decision)
        assert path.read_bytes() == after
    assert FORMAT == {"format": "equipoise-journal", "version": 1}
    path.write_bytes(head + line + line + line[:-1])
    assert [entry.line for entry in read(path)] == [2, 3]
    path.write_bytes(head + b"{}\n" + line)
    with pytest.raises(JournalError, match=r"j:2: is damaged \(KeyError: 'observation'\)"):
        list(read(path))
    path.write_bytes(b"{}\n" + line)
    with pytest.raises(JournalError, match="j:1: is not an equipoise-journal of version 1"):
        list(read(path))


# -- policy files ----------------------------------------------------------------------------------------------

KEY = b"sixteen byte key"


def policy_file(
    path: Path, old: str = "", new: str = "", *, sealed: bool = True, key: bytes | None = None
) -> str:
    """Write a policy file of nine lines with a change in it; what is said of it, less the file's name."""
    text = (
        "format: 1\ncontract: 1\npolicy:\n- s1: {}\n- s2: {damping: 0.25}\nprofile: {name: a}\n"
        "scenario: {}\npromise: {x: 1.5}\n"
    )
    assert not old or text.count(old) == 1
    text = text.replace(old, new) if old else text
    if sealed:
        text += f"digest: {digest_of(yaml.safe_load(text))}\n"
    path.write_text(text)
    try:
        load_policy(path, key)
    except ExportError as error:
        return str(error).removeprefix(f"{path}:")
    return ""


@pytest.mark.parametrize(
    ("old", "new", "place", "said"),
    [
        ("", "", "", ""), ("format: 1", "format: 3", "1:1", "format 3, this version reads 1"),
        ("contract: 1", "contract: 2", "2:1", "written for contract 2, this version has 1"),
        ("- s2: {damping: 0.25}", "- s9: {}", "5:3", "stage 's9' is not built in"),
        ("- s2: {damping: 0.25}", "- s2: [3]", "5:3", "s2: parameters must be a mapping"),
        ("damping: 0.25", "damping: 0.25, mode: fast", "5:23", "is not one of formula, optimal"),
        ("- s2: {damping: 0.25}", "- s2", "3:1", "needs a list of stages"),
        ("{name: a}", "{path: a}", "6:1", "profile: needs name and digest only"),
        ("{name: a}", "{name: 7}", "6:1", "profile: name and digest must be text"),
        ("scenario: {}", "scenario: []", "7:1", "scenario: needs name and digest only"),
        ("{x: 1.5}", "{x: [1, 2]}", "8:1", "promise: needs numbers and texts by name"),
        ("{x: 1.5}", "{y: 1, x: [2, {z: 2020-01-01}]}", "8:25", "is not plain data"),
        ("{x: 1.5}", "{x: [[[[[[1]]]]]]}", "8:1", "promise: needs numbers and texts by name"),
        ("{x: 1.5}", "{x: [[[[[[[1]]]]]]]}", "8:21", "nested too deeply"),
        ("{x: 1.5}", "{y: 1, 4: 2}", "8:1", "key 4 is not text"),
    ],
)  # fmt: skip
def test_where_a_fault_of_a_policy_file_is(tmp_path: Path, old: str, new: str, place: str, said: str) -> None:
    if "2020" in new or "4: 2" in new:  # it has no digest: refused before
        found = policy_file(tmp_path / "p", old, new, sealed=False)
    else:
        found = policy_file(tmp_path / "p", old, new)
    assert found.startswith(place)
    assert said in found
    assert "\n" not in found


def test_a_file_without_digest_or_signature_is_told_at_its_beginning(tmp_path: Path) -> None:
    assert policy_file(tmp_path / "p", sealed=False) == "1:1: key 'digest' is missing"
    assert policy_file(tmp_path / "p", key=KEY) == "1:1: not signed, and a key was given"
    (tmp_path / "q").write_bytes(b"format: 1\nab\xff: 2\n")
    with pytest.raises(ExportError, match="q:2:3: not a text file"):
        load_policy(tmp_path / "q")
    (tmp_path / "q").write_bytes(b"\xff")
    with pytest.raises(ExportError, match="q:1:1: not a text file"):
        load_policy(tmp_path / "q")


def test_a_policy_file_of_64_kib_is_read_and_no_larger_one(tmp_path: Path) -> None:
    assert MAX_BYTES == 65536
    exported = ExportedPolicy(make_policy("s1+s2"), {"name": "a"}, {}, {"x": 1.5})
    path = tmp_path / "p"
    digest = write_policy(exported, path, KEY)
    text = path.read_text()
    assert text.splitlines()[-2:] == [
        f"digest: {digest}",
        f'signature: "{_signature(exported.content(), KEY)}"',
    ]
    assert (load_policy(path, KEY).signed, load_policy(path).signed) == (True, False)
    path.write_text(text + "#" * (MAX_BYTES - len(text)))
    assert load_policy(path, KEY).content() == exported.content()
    path.write_text(text + "#" * (MAX_BYTES - len(text) + 1))
    with pytest.raises(ExportError, match="p: larger than 65536 bytes, no policy file is"):
        load_policy(path)
    many = ExportedPolicy(make_policy("s1"), promise={f"x{k:02}": "y" * 4000 for k in range(17)})
    with pytest.raises(ExportError, match="p: the policy takes more than 65536 bytes"):
        write_policy(many, path)
    (entry, *_) = stage_entries(make_policy("fixed-h(interval=7)"))
    assert entry == {"fixed-h": {"interval": 7}}
