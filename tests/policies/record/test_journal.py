"""The journal: what is written comes back to the bit, replays, and survives a torn end."""

import copy
import json
import math
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from equipoise.policies.contract import UNCHANGED, Allocation, Decision, Moves, Plan, Policy, Refusal, Stage, refine
from equipoise.policies.observation import TABLES, Observation
from equipoise.policies.record import journal
from equipoise.policies.record.journal import Entry, JournalError, JournalWriter, append, read, read_plans, replay
from equipoise.policies.registry import make_policy
from tests.policies.observations import clusters, one_job

DTYPES = st.sampled_from([np.float64, np.float32, np.int64, np.int8, np.uint16, np.bool_, "U3"])
ARRAYS = DTYPES.flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=2, min_side=0)))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | ARRAYS,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.lists(inner).map(tuple),
    max_leaves=8,
)


def bits(value):
    """A form in which only values that are equal to the bit are equal; NaN counts as one value."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "f":
            value = np.where(np.isnan(value), np.array(np.nan, value.dtype), value)
        return ("array", value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, np.generic):
        return ("scalar", bits(np.asarray(value)))
    if isinstance(value, float):
        return ("float", "nan" if math.isnan(value) else value.hex())
    if isinstance(value, dict):
        return {key: bits(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(bits, value)]
    return (type(value).__name__, value)


def through_text(value):
    return journal._decode(json.loads(json.dumps(journal._encode(value), allow_nan=False)))


@settings(max_examples=300, deadline=None)
@given(value=VALUES)
def test_any_memory_comes_back_to_the_bit(value):
    assert bits(through_text(value)) == bits(value)


def test_bits_that_are_easily_lost():
    for value in (0.1 + 0.2, -0.0, 5e-324, 1e308, math.inf, -math.inf, 2**60 + 1, np.float64(-0.0), np.int8(-3)):
        assert bits(through_text(value)) == bits(value)
    array = np.array([0.0, -0.0])
    assert bits(through_text(array)) == bits(array)
    assert "all" not in journal._encode(array)
    assert journal._encode(np.full(1000, np.nan)) == {"$array": "float64", "rows": 1000, "all": {"$float": "nan"}}


def test_what_a_journal_cannot_hold_is_refused():
    class Colour(IntEnum):
        RED = 1

    assert through_text(Colour.RED) == 1
    for bad in ({1: 2}, {"a": object()}, {1, 2}, b"x"):
        with pytest.raises(TypeError):
            journal._encode(bad)


def same_observation(a, b):
    assert (a.time_s, a.window_s, a.gpu_models) == (b.time_s, b.window_s, b.gpu_models)
    for name in TABLES:
        for column, values in getattr(a, name).as_dict().items():
            assert bits(getattr(getattr(b, name), column)) == bits(values), (name, column)
    assert bits(a.waiting) == bits(b.waiting)
    assert bits(a.running) == bits(b.running)


@settings(max_examples=25, deadline=None)
@given(observation=clusters())
def test_decisions_of_all_stages_come_back_and_replay(observation, tmp_path_factory):
    path = tmp_path_factory.mktemp("journal") / "decisions.jsonl"
    policy = make_policy("s1+s2+s3+s4")
    memory = policy.initial()
    decisions = []
    with JournalWriter(path) as writer:
        for k in range(2):
            later = copy.deepcopy(observation)
            later.time_s += 10.0 * k
            decisions.append(refine(policy, later, memory))
            memory = decisions[-1].memory
            writer.write(decisions[-1], [Refusal("moves", "too late")] if k else [])
    entries = list(read(path))
    assert [entry.line for entry in entries] == [2, 3]
    for entry, decision in zip(entries, decisions, strict=True):
        same_observation(decision.observation, entry.decision.observation)
        for field in ("plan", "memory_before", "memory"):
            old, new = getattr(decision, field), getattr(entry.decision, field)
            assert journal._encode(new) == journal._encode(old)
        assert type(entry.decision.plan) is Plan
    assert entries[1].refused == (Refusal("moves", "too late"),)
    assert replay(policy, path) == []


def test_plans_keep_their_parts(tmp_path):
    plan = UNCHANGED.with_(
        moves=Moves(*(np.array([k]) for k in range(4))),
        allocation=Allocation.of([(0, [1, 2]), (3, [])], 0.5),
        gpu_share=np.array([0.25, math.nan]),
        revisit_s=12.5,
    ).because("x", "why", number=np.float64(0.1), rows=np.array([1, 2]), nothing=None)
    append(tmp_path / "j", Decision(Observation.of(3.0), plan, {}, {"0:x": {"a": np.zeros((2, 3))}}))
    (entry,) = read(tmp_path / "j")
    assert isinstance(entry, Entry)
    back = entry.decision.plan
    assert back.revisit_s == 12.5
    assert bits(back.gpu_share) == bits(plan.gpu_share)
    assert back.allocation.gpus_of(0).tolist() == [1, 2]
    assert back.moves.worker.tolist() == [3]
    assert back.reasons[0].text == "why"
    assert bits(back.reasons[0].values["number"]) == bits(np.float64(0.1))
    assert not entry.decision.memory["0:x"]["a"].flags.writeable


def some_decision(time_s=1.0):
    policy = make_policy("s2+fifo")
    observation = one_job([2.0, 1.0], time_s=time_s)
    return refine(policy, observation, policy.initial())


def test_plans_can_be_read_without_what_was_observed(tmp_path):
    path = tmp_path / "j"
    for k in range(3):
        append(path, some_decision(), [Refusal("allocation", f"GPU {k} is down")])
    whole = [(e.decision.observation.time_s, e.decision.plan.reasons, e.refused) for e in read(path)]
    assert [(time_s, plan.reasons, refused) for time_s, plan, refused in read_plans(path)] == whole
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1], '{"time_s": 1}', lines[3]]) + "\n")
    with pytest.raises(JournalError, match=":3: is damaged"):
        list(read_plans(path))


def test_a_torn_last_line_is_left_out_and_overwritten(tmp_path):
    path = tmp_path / "j"
    for k in range(3):
        append(path, some_decision(1.0 + k))
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    for cut in (1, len(lines[-1]) // 2, len(lines[-1]) - 1):
        path.write_bytes(whole[: len(whole) - cut])
        assert [e.decision.observation.time_s for e in read(path)] == [1.0, 2.0]
    append(path, some_decision(9.0))
    assert [e.decision.observation.time_s for e in read(path)] == [1.0, 2.0, 9.0]
    path.write_bytes(b"".join(lines[:1])[:-5])  # not even the head is whole
    append(path, some_decision(4.0))
    assert [e.decision.observation.time_s for e in read(path)] == [4.0]


def test_damage_is_one_clear_line(tmp_path):
    path = tmp_path / "j"
    append(path, some_decision())
    head, line = path.read_text().splitlines()
    for damaged in ('{"time_s": 1.0}', line[:-9], "[]", line.replace('"float64"', '"float65"'), "7"):
        path.write_text(f"{head}\n{damaged}\n")
        with pytest.raises(JournalError, match=rf"^{path}:2: is damaged"):
            list(read(path))
    for other in ('{"format": "equipoise-journal", "version": 99}', '{"a": 1}', "nonsense"):
        path.write_text(f"{other}\n{line}\n")
        with pytest.raises(JournalError, match=rf"^{path}:1: "):
            list(read(path))


@dataclass(frozen=True)
class Counting(Stage):
    """Plans an interval and counts its calls."""

    name = "counting"
    kind = "sync"
    interval: int = 2

    def refine(self, observation, plan, memory):
        rows = len(observation.jobs)
        plan = plan.with_(sync_interval=np.full(rows, self.interval)).because("counting", "always")
        return plan, {"calls": memory.get("calls", 0) + 1, "zero": -0.0 if self.interval == 4 else 0.0}


def test_replay_names_what_differs(tmp_path):
    path = tmp_path / "j"
    policy = Policy("p", (Counting(),))
    decision = refine(policy, one_job([1.0]), {"0:counting": {"calls": 4}})
    append(path, decision)
    assert replay(policy, path) == []
    (line,) = replay(Policy("p", (Counting(interval=3),)), path)
    assert line.startswith(f"{path}:2: at 100.0 s: plan.sync_interval was")
    lines = replay(Policy("p", (Counting(interval=4),)), path)
    assert len(lines) == 2
    assert "memory.0:counting.zero was 0.0, is -0.0" in lines[1]
    (line,) = replay(Policy("p", (Counting(interval=0),)), path)
    assert "infeasible plan" in line
    assert len(replay(make_policy("fifo"), path)) >= 2


def test_lines_are_strict_json(tmp_path):
    path = tmp_path / "j"
    append(path, some_decision())

    def reject(text):
        raise AssertionError(f"{text} is no JSON")

    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=reject)
