"""Kueue's admission on worked cases: borrowing, reclaim, order, fair sharing; and its performance test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.policies.observation import RUNNING
from equipoise.policies.quotas.limits import Quota, held_amounts
from equipoise.policies.record.journal import read
from equipoise.policies.registry import make_policy
from equipoise.sim.loading.file import from_mapping, load
from equipoise.sim.loading.site.read import import_site
from equipoise.sim.run import run
from equipoise.sim.scenario.model import Decide
from equipoise.sim.world.allocate import Writes
from tests.policies.queues.test_limits import case

DATA = Path(__file__).resolve().parents[4] / "shared" / "data" / "formats"


def two(**more: Any) -> dict[str, Any]:
    """Two queues of 4 GPUs in one cohort."""
    each = {"cohort": "all", "gpus": 4}
    return {"cohorts": [{"name": "all"}], "queues": [{"name": n, **each, **more} for n in ("qa", "qb")]}


def job(name: str, queue: str, gpus: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "queue": queue, "gpus": gpus, "duration": 100, **more}


def starts(jobs: list[dict[str, Any]], queues: dict[str, Any]) -> dict[str, list[float]]:
    made = run(case(jobs, queues), policy=make_policy("kueue"))
    rows = zip(made.jobs["name"].tolist(), made.jobs["start_s"], made.jobs["preemptions"], strict=True)
    return {name: [float(start), float(stops)] for name, start, stops in rows}


def test_idle_quota_is_borrowed_up_to_the_limit() -> None:
    jobs = [job("a", "qa", 3), job("b", "qa", 3)]
    assert starts(jobs, two()) == {"a": [0.0, 0.0], "b": [0.0, 0.0]}
    assert starts(jobs, two(borrow=1))["b"] == [100.0, 0.0]
    assert starts(jobs, two(lend=1))["b"] == [100.0, 0.0]


def test_a_queue_takes_back_what_it_lent() -> None:
    jobs = [job("a1", "qa", 4), job("a2", "qa", 4, arrival=1), job("b", "qb", 3, arrival=10)]
    assert starts(jobs, two(reclaim="any")) == {"a1": [0.0, 0.0], "a2": [1.0, 1.0], "b": [10.0, 0.0]}
    assert starts(jobs, two())["b"] == [100.0, 0.0]
    # Of lower priority only: all are equal.
    assert starts(jobs, two(reclaim="lower-priority"))["b"] == [100.0, 0.0]


def test_no_queue_takes_back_more_than_its_quota() -> None:
    jobs = [job("a", "qa", 8), job("b", "qb", 5, arrival=10)]
    assert starts(jobs, two(reclaim="any"))["b"] == [100.0, 0.0]  # it would have to borrow 1 itself


def test_lower_priority_of_its_own_queue_gives_way() -> None:
    jobs = [job("low", "qa", 4), job("qb", "qb", 4), job("high", "qa", 4, arrival=10, priority=2)]
    assert starts(jobs, two(within="lower-priority"))["high"] == [10.0, 0.0]
    assert starts(jobs, two())["high"] == [100.0, 0.0]


def test_a_newer_job_of_its_own_queue_and_priority_gives_way_where_that_is_said() -> None:
    jobs = [{**job("first", "q", 2), "duration": 50}, job("old", "q", 4, arrival=1), job("new", "q", 2, arrival=2)]
    queue = {"name": "q", "gpus": 4}
    found = starts(jobs, {"queues": [queue | {"within": "lower-or-newer-equal-priority"}]})
    assert found["old"] == [50.0, 0.0]
    assert (found["first"], found["new"][1]) == ([0.0, 0.0], 1.0)
    assert starts(jobs, {"queues": [queue | {"within": "lower-priority"}]})["old"] == [102.0, 0.0]
    at_once = [job("first", "q", 2), job("same", "q", 4), job("later", "q", 4, arrival=5)]
    found = starts(at_once, {"queues": [queue | {"within": "lower-or-newer-equal-priority"}]})
    assert found == {"first": [0.0, 0.0], "same": [100.0, 0.0], "later": [200.0, 0.0]}


def test_only_as_many_as_needed_are_stopped() -> None:
    jobs = [job(f"a{k}", "qa", 2, arrival=k) for k in range(4)] + [job("b", "qb", 2, arrival=10)]
    found = starts(jobs, two(reclaim="any"))
    assert [found[f"a{k}"][1] for k in range(4)] == [0.0, 0.0, 0.0, 1.0]  # the last to start


def test_while_it_borrows_a_queue_stops_lower_priorities_of_others_up_to_the_threshold() -> None:
    """Kueue, "BorrowWithinCohort": b asks for 6 with a quota of 4; qa holds all 8, of which 2 are its own."""
    jobs = [job(f"a{k}", "qa", 2, priority=2, arrival=k) for k in range(4)]
    jobs.append(job("b", "qb", 6, arrival=10, priority=5))
    queues: dict[str, Any] = {
        "cohorts": [{"name": "all", "gpus": 2}],
        "queues": [{"name": n, "cohort": "all", "gpus": g, "reclaim": "any"} for n, g in (("qa", 2), ("qb", 4))],
    }
    assert starts(jobs, queues)["b"] == [102.0, 0.0]  # larger than its quota: it stops nobody
    queues["queues"][1]["borrow_within"] = "lower-priority"
    found = starts(jobs, queues)
    assert found["b"] == [10.0, 0.0]
    assert [found[f"a{k}"][1] for k in range(4)] == [0.0, 1.0, 1.0, 1.0]  # the last to start, as many as needed
    for most, start_s in ((1, 102.0), (2, 10.0)):  # of a higher priority than this nobody is stopped
        queues["queues"][1]["borrow_within_most"] = most
        assert starts(jobs, queues)["b"][0] == start_s
    queues["queues"][1]["borrow_within_most"] = 9
    jobs[-1]["priority"] = 2  # never of its own priority
    assert starts(jobs, queues)["b"][0] == 102.0


def test_partial_admission_takes_as_many_workers_as_fit() -> None:
    """Kueue, "Partial admission": full size first, then stopping others, then as few fewer workers as it can be."""
    model = {"parameters": 1e6, "kind": "large-products", "flop_per_sample": 1e9}
    elastic = {"name": "e", "model": "m", "gpus": 8, "global_batch": 32, "steps": 50, "queue": "qa", "arrival": 5}
    text = {
        "schema_version": 1,
        "name": "x",
        "cluster": {"nodes": [{"name": "a", "count": 2, "gpus": 4}]},
        "workload": {"models": {"m": model}, "jobs": [job("r", "qb", 3, duration=5000), elastic]},
        "queues": two(),
    }

    def first() -> list[Any]:
        made = run(from_mapping(text), policy=make_policy("kueue"), timeline=True)
        assert made.timeline is not None
        segments = made.timeline["segments"]
        row = made.jobs["name"].tolist().index("e")
        held = [
            int(g)
            for j, g in zip(segments["job_id"], segments["gpus"], strict=True)
            if j == made.jobs["job_id"][row] and g
        ]
        return [float(made.jobs["start_s"][row]), held[0]]

    assert first() == [5000.0, 8]
    elastic["workers_min"] = 2
    assert first() == [5.0, 5]
    elastic["workers_min"] = 6
    assert first() == [5000.0, 8]


def test_a_job_of_a_known_duration_shrinks_too_and_runs_longer_in_proportion() -> None:
    jobs = [job("r", "qb", 3), job("e", "qa", 8, arrival=5)]

    def found(**more: Any) -> list[float]:
        made = run(case([jobs[0], {**jobs[1], **more}], two()), policy=make_policy("kueue"))
        row = made.jobs["name"].tolist().index("e")
        return [float(made.jobs[key][row]) for key in ("start_s", "completion_s", "useful_gpu_s")]

    assert found() == [100.0, 200.0, 800.0]
    assert found(gpus_min=2) == pytest.approx([5.0, 5.0 + 100 * 8 / 5, 800.0])  # 5 of 8 are free
    assert found(gpus_min=6) == [100.0, 200.0, 800.0]
    text = case([jobs[0], {**jobs[1], "gpus_min": 2}], two())
    assert run(text, policy=make_policy("easy")).jobs["start_s"].max() == 100.0  # others keep it whole


def test_nobody_is_stopped_for_a_gang_that_still_finds_no_place_of_one_model() -> None:
    nodes = [{"name": "a", "gpus": 4}, {"name": "h", "gpus": 4, "accelerator": "h100_sxm"}]
    jobs = [
        job("stays-a", "q", 2, gpu_types=["a"], priority=9),
        job("stays-h", "q", 2, gpu_types=["h"], priority=9),
        job("low", "q", 1, gpu_types=["a"], duration=200),
        job("gang", "q", 4, arrival=10, priority=5),
        job("tiny", "q", 1, arrival=12),
    ]
    queues = {"queues": [{"name": "q", "gpus": 8, "within": "lower-priority", "order": "strict"}]}
    rows = run(case(jobs, queues, nodes), policy=make_policy("kueue")).jobs
    columns = zip(rows["start_s"], rows["preemptions"], rows["completion_s"], strict=True)
    found = dict(zip(rows["name"].tolist(), columns, strict=True))
    assert found["low"][:2] == (0.0, 0)
    assert found["gang"][0] == found["stays-h"][2]  # on h, whole
    assert found["tiny"][0] >= found["gang"][0]  # behind it in a strict queue


def test_strict_and_best_effort() -> None:
    jobs = [job("runs", "qa", 6), job("large", "qa", 4, arrival=1), job("small", "qa", 1, arrival=2)]
    assert starts(jobs, two())["small"] == [2.0, 0.0]
    assert starts(jobs, two(order="strict"))["small"] == [100.0, 0.0]


def test_within_quota_goes_before_borrowing() -> None:
    jobs = [job("x", "qa", 8), job("a", "qa", 5, arrival=1, priority=9), job("b", "qb", 4, arrival=2)]
    assert starts(jobs, two())["b"] == [100.0, 0.0]
    assert starts(jobs, two())["a"] == [200.0, 0.0]


def test_fair_sharing_serves_who_borrows_least_for_its_weight() -> None:
    each = {"cohort": "all", "gpus": 0}
    queues = {
        "cohorts": [{"name": "all", "gpus": 6}],
        "queues": [{"name": "qa", "weight": 3, **each}, {"name": "qb", **each}],
    }
    jobs = [job(f"b{k}", "qb", 2) for k in range(4)] + [job(f"a{k}", "qa", 2) for k in range(4)]
    for fair, first in ((True, "a1"), (False, "b1")):  # a head of each queue a cycle; then two GPUs are left
        found = starts(jobs, queues | {"fair_sharing": fair})
        assert {name for name, (start, _) in found.items() if start == 0.0} == {"a0", "b0", first}


def test_flavors_are_tried_in_order() -> None:
    nodes = [{"name": "a", "gpus": 4}, {"name": "h", "gpus": 4, "accelerator": "h100_sxm"}]
    queues = {"queues": [{"name": "qa", "gpus": {"h": 2, "a": 4}}]}
    jobs = [job(f"j{k}", "qa", 2) for k in range(3)]
    made = run(case(jobs, queues, nodes), policy=make_policy("kueue"), timeline=True)
    assert made.timeline is not None
    held = made.timeline["holdings"]
    assert held["node"].tolist() == [1, 1, 0, 0, 0, 0]
    assert made.jobs["start_s"].tolist() == [0.0, 0.0, 0.0]


JOBS = st.lists(
    st.tuples(
        st.sampled_from(["qa", "qb", "qc"]),
        st.integers(1, 4),
        st.integers(5, 60),
        st.integers(0, 60),
        st.integers(1, 3),
    ),
    min_size=2,
    max_size=16,
)


@settings(max_examples=25, deadline=None)
@given(JOBS, st.sampled_from(["any", "lower-priority"]))
def test_reclaim_never_takes_more_than_was_lent(tmp_path_factory: Any, jobs: list[Any], reclaim: str) -> None:
    each = {"cohort": "all", "reclaim": reclaim, "within": "lower-priority"}
    queues = {
        "cohorts": [{"name": "all"}],
        "queues": [{"name": n, "gpus": g, **each} for n, g in (("qa", 4), ("qb", 3), ("qc", 1))],
    }
    listed = [
        {"name": f"j{k}", "queue": q, "gpus": g, "duration": d, "arrival": a, "priority": p}
        for k, (q, g, d, a, p) in enumerate(jobs)
    ]
    folder = tmp_path_factory.mktemp("run")
    made = run(case(listed, queues), policy=make_policy("kueue"), journal=folder / "j.jsonl")
    assert np.isfinite(made.jobs["completion_s"]).all()
    for entry in read(folder / "j.jsonl"):
        o, allocation = entry.decision.observation, entry.decision.plan.allocation
        if allocation is None:
            continue
        q, quota = o.queues, Quota.now(o)
        for row in allocation.job.tolist():
            if o.jobs.state[row] == RUNNING:
                quota.book(int(o.jobs.claim[row]), {m: -n for m, n in held_amounts(o, row).items()}, -1)
        values = entry.decision.plan.reasons[-1].values
        for victim, by in zip(values["stopped"].tolist(), values["stopped_for"].tolist(), strict=True):
            mine, theirs = (q.codes(o.jobs.claim[[row]], "queue")[0] for row in (by, victim))
            if mine != theirs:  # after taking back, its queue has no more than its own quota
                leaf = int(q.leaf[o.jobs.claim[by]][0])
                started = [r for k, r in enumerate(allocation.job.tolist()) if len(allocation.gpus_of(k))]
                own = [r for r in started if q.codes(o.jobs.claim[[r]], "queue")[0] == mine and r <= by]
                taken = quota.gpus[leaf] + float(o.jobs.gpus_requested[by])
                assert by in own
                assert taken <= q.gpus_nominal[leaf] + 1e-9


def test_the_performance_test_of_kueue(tmp_path: Path) -> None:
    text = """cohorts:
  - className: cohort
    count: 2
    queuesSets:
    - className: cq
      count: 2
      nominalQuota: 20
      borrowingLimit: 100
      reclaimWithinCohort: Any
      withinClusterQueue: LowerPriority
      workloadsSets:
      - count: 35
        creationIntervalMs: 100
        workloads: [{className: small, runtimeMs: 200, priority: 50, request: 1}]
      - count: 5
        creationIntervalMs: 1200
        workloads: [{className: large, runtimeMs: 1000, priority: 200, request: 20}]
"""
    (tmp_path / "generator.yaml").write_text(text, encoding="utf-8")
    out = tmp_path / "kueue.yaml"
    out.write_text(import_site([tmp_path / "generator.yaml"], out=out), encoding="utf-8")
    scenario = load(out)
    assert len(scenario.queues.queues) == 4
    made = run(scenario)
    assert made.policy_name == "kueue"
    assert len(made.jobs["name"]) == 4 * 40
    large = np.array([name.startswith("large") for name in made.jobs["name"]])
    wait_s = made.jobs["queueing_s"]
    assert wait_s[large].mean() < wait_s[~large].mean()
    at_once = scenario.model_copy(update={"decide": Decide()})
    assert run(at_once).jobs["queueing_s"][large].max() == 0.0  # highest priority, each within its quota
    # Every start is a write: 160 of them at 4 a second, after a burst of 8.
    slow = scenario.model_copy(update={"decide": Decide(writes_per_s=4.0, writes_burst=8)})
    jobs = run(slow).jobs
    assert jobs["completion_s"].max() >= (160 - 8) / 4.0
    assert (jobs["start_s"] >= jobs["arrival_s"]).all()
    written = np.sort(jobs["start_s"])
    assert all(np.count_nonzero((written > t) & (written <= t + 2.0)) <= 2.0 * 4.0 + 8 for t in written)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(1, 5)), min_size=1, max_size=30),
    st.floats(0.5, 20.0),
    st.integers(1, 10),
)
def test_what_is_written_down_goes_through_a_bucket(asked: list[tuple[float, int]], per_s: float, burst: int) -> None:
    """The plain twin: a bucket that is filled, and who comes when it is empty waits for the next drop."""
    writes, now_s, level, at_s = Writes(per_s, burst), 0.0, float(burst), 0.0
    for gap_s, count in asked:
        now_s += gap_s
        for _ in range(count):
            level, at_s = min(float(burst), level + max(0.0, now_s - at_s) * per_s), max(at_s, now_s)
            at_s += max(0.0, 1.0 - level) / per_s
            level = max(level, 1.0) - 1.0
        assert writes.take(now_s, count) == pytest.approx(at_s, abs=1e-6)


@pytest.mark.long
@pytest.mark.shared_data
@pytest.mark.skipif(not DATA.is_dir(), reason="no shared data")
def test_the_real_performance_test_of_kueue(tmp_path: Path) -> None:
    out = tmp_path / "kueue.yaml"
    out.write_text(import_site([DATA / "kueue" / "baseline-generator.yaml"], out=out), encoding="utf-8")
    made = run(load(out))
    assert len(made.jobs["name"]) == 15000
    of = {n: np.array([name.startswith(n) for name in made.jobs["name"]]) for n in ("small", "medium", "large")}
    waits = {name: float(made.jobs["queueing_s"][rows].mean()) for name, rows in of.items()}
    assert 5.0 < waits["large"] < 15.0
    assert 70.0 < waits["medium"] < 85.0
    assert 210.0 < waits["small"] < 235.0
    assert 300.0 < made.jobs["completion_s"].max() < 380.0  # 15,000 starts at 50 a second, and what is told
