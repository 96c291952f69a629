"""The simulated world: order at one instant, stops, faults, checkpoints, broken policies, same bytes."""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from equipoise.policies.contract import Allocation, AllocationStage, Kind, Memory, Plan, Policy, Stage
from equipoise.policies.observation import Observation
from equipoise.policies.registry import make_stage
from equipoise.sim.run import RunFailed, run
from equipoise.sim.scenario.tree import InputError
from tests.scenarios import model, scenario, simulate

EXACT = {"detection": 5.0, "initialisation": 2.0}


def rigid(name: str, arrival: float, gpus: int, duration: float) -> dict[str, object]:
    return {"name": name, "arrival": arrival, "gpus": gpus, "duration": duration}


def pool(jobs: list[dict[str, object]], gpus: int = 4, **sections: object):
    return scenario(cluster={"gpus": gpus}, workload={"jobs": jobs, "models": {"m": model()}}, **sections)


def test_completions_make_room_for_arrivals_of_the_same_instant() -> None:
    result = simulate(pool([rigid("a", 0, 4, 10), rigid("b", 10, 4, 5)]))
    assert result.jobs["start_s"].tolist() == [0, 10]
    assert result.jobs["completion_s"].tolist() == [10, 15]
    assert result.totals["makespan_s"] == 15
    assert result.summary()["gpu_busy_ratio"] == 1


def test_a_rigid_gang_runs_at_the_pace_of_its_slowest_node() -> None:
    case = scenario(
        cluster={"nodes": [{"name": "a", "gpus": 1}, {"name": "b", "gpus": 1, "speed": 0.5}]},
        workload={"jobs": [rigid("x", 0, 2, 10)]},
        faults={"events": [{"kind": "slow", "node": "b", "at": 4.0, "duration": 8.0, "factor": 4.0}]},
    )
    # 4 s at 1/2, 8 s at 1/8, the rest at 1/2.
    assert simulate(case).jobs["completion_s"][0] == pytest.approx(12 + (10 - 2 - 1) / 0.5)


def crash(at: float, duration: float, node: str = "node-0") -> dict[str, object]:
    return {"events": [{"kind": "crash", "node": node, "at": at, "duration": duration}]}


@pytest.mark.parametrize(("interval", "done_before"), [("never", 0.0), (10.0, 20.0), (4.0, 24.0)])
def test_a_crash_throws_a_rigid_job_back_to_its_checkpoint(interval: object, done_before: float) -> None:
    job = rigid("a", 0, 1, 40) | {"checkpoint": {"interval": interval}}
    case = scenario(
        cluster={"nodes": [{"gpus": 1}]}, workload={"jobs": [job]}, faults=crash(25.0, 100.0, "node"), restart=EXACT
    )
    result = simulate(case)
    assert result.jobs["completion_s"][0] == pytest.approx(125 + 5 + 2 + 40 - done_before)
    assert result.jobs["lost_to_faults_gpu_s"][0] == pytest.approx(25 - done_before)
    assert result.jobs["restarts"][0] == 1
    assert result.jobs["queueing_s"][0] == pytest.approx(100)


def training(**keys: object) -> dict[str, object]:
    return {"name": "t", "gpus": 2, "model": "m", "steps": 100, "global_batch": 20} | keys


@settings(max_examples=60, deadline=None)
@given(
    pieces=st.lists(
        st.tuples(st.sampled_from([0.5, 1.0, 2.3]), st.sampled_from([1.0, 2.0, 3.7])), min_size=1, max_size=5
    ),
    part=st.floats(0.05, 0.95),
    every_s=st.sampled_from(["never", 0.7, 2.0]),
    event_by_event=st.booleans(),
)
def test_what_a_crash_takes_from_a_rigid_job_is_the_time_that_it_took(pieces, part, every_s, event_by_event) -> None:
    """The node runs each (time, slowness) of the list, and crashes during it; then it is healthy."""
    events, now_s, total_s = [], 0.0, sum(length for length, _ in pieces)
    crash_s = part * total_s
    ends = []  # (time, work done) where the speed changes
    work = 0.0
    for length, slowness in pieces:
        if slowness > 1.0:
            events.append({"kind": "slow", "node": "node-0", "at": now_s, "duration": length, "factor": slowness})
        ends.append((now_s, work))
        now_s, work = now_s + length, work + length / slowness
    ends.append((now_s, work))
    at_s, done = np.array(ends).T
    saves = 0.0 if every_s == "never" else crash_s / every_s
    assume(saves == 0.0 or abs(saves - round(saves)) > 1e-9)  # at the very end of a save either is right
    kept_s = 0.0 if every_s == "never" else math.floor(saves) * every_s
    kept = float(np.interp(kept_s, at_s, done))
    events.append({"kind": "crash", "node": "node-0", "at": crash_s, "duration": total_s})
    case = scenario(
        cluster={"nodes": [{"count": 1, "gpus": 2, "name": "node"}]},
        workload={"jobs": [rigid("a", 0, 2, 20.0) | {"checkpoint": {"interval": every_s}}]},
        faults={"events": events},
        restart={"detection": 0.0, "initialisation": 0.0},
    )
    jobs = simulate(case, event_by_event=event_by_event).jobs
    # After the crash, until `total_s` later, nothing runs; all episodes are over by then.
    assert jobs["lost_to_faults_gpu_s"][0] == pytest.approx(2 * (crash_s - kept_s), abs=1e-9)
    assert jobs["busy_gpu_s"][0] == pytest.approx(2 * (kept_s + 20.0 - kept), abs=1e-9)
    assert jobs["useful_gpu_s"][0] == jobs["busy_gpu_s"][0]
    assert jobs["completion_s"][0] == pytest.approx(crash_s + total_s + 20.0 - kept)


def test_a_crash_throws_a_training_job_back_to_its_checkpoint() -> None:
    # A step takes 0.1 s; a checkpoint every second takes 0.5 s for 3 GB at 2 x 3 GB/s.
    case = scenario(
        cluster={"nodes": [{"count": 3, "gpus": 1}]},
        workload={"models": {"m": model()}, "jobs": [training(checkpoint={"interval": 1.0, "size": 3e9})]},
        faults=crash(4.05, 1000.0),
        restart=EXACT,
    )
    result = simulate(case)
    # Saved until 1.5 and 3.0, the third write was cut off. It goes on on another node after 5 + 2 + 0.5 s.
    assert result.jobs["lost_samples"][0] == 200
    assert result.jobs["samples"][0] == 2000
    assert result.jobs["lost_to_faults_gpu_s"][0] == pytest.approx(2 * 1.0)
    again_s = 4.05 + 5 + 2 + 0.5
    assert result.jobs["completion_s"][0] == pytest.approx(again_s + 8.0 + 7 * 0.5)


def test_preemption_saves_and_costs_save_reload_and_start() -> None:
    jobs = [training(gpus=4, checkpoint={"size": 3e9}), rigid("short", 3.05, 4, 1)]
    result = simulate(pool(jobs, restart=EXACT), "srtf")
    assert result.jobs["preemptions"].tolist() in ([1, 0], [0, 0])
    assert result.jobs["samples"][0] == 2000
    if result.jobs["preemptions"][0]:
        # The running step is lost; back after 1 s of the short job, 2 s start, 1 s to save, 1 s to load.
        assert result.jobs["completion_s"][0] == pytest.approx(4.05 + 4 + 5.0 - 61 * 0.05 + 0.0, abs=0.06)


def test_spot_reclaim_with_notice_loses_nothing() -> None:
    case = scenario(
        cluster={"nodes": [{"name": "spot", "gpus": 1}, {"name": "own", "gpus": 1}]},
        workload={"jobs": [rigid("a", 0, 2, 5000)]},
        faults={"spot": {"group": "spot", "mtbf": 1000.0, "notice": 60.0, "away": 100.0}},
        restart=EXACT,
    )
    result = simulate(case, seed=3)
    assert result.jobs["preemptions"][0] > 0
    assert result.jobs["lost_to_faults_gpu_s"][0] == 0


@pytest.mark.parametrize(("notice_s", "lost"), [(60.0, True), (300.0, False)])
def test_a_notice_shorter_than_the_writing_loses_what_was_not_saved(notice_s: float, lost: bool) -> None:
    """Writing takes 2 min, and is in the duration: 5000 s of work take 5000 s and what is waited for and lost."""
    case = scenario(
        cluster={"nodes": [{"name": "spot", "gpus": 1}, {"name": "own", "gpus": 1}]},
        workload={"jobs": [rigid("a", 0, 2, 5000) | {"checkpoint": {"interval": 600.0}}]},
        faults={"spot": {"group": "spot", "mtbf": 1000.0, "notice": notice_s, "away": 100.0}},
        restart=EXACT | {"checkpoint_write": 120.0},
    )
    result = simulate(case, seed=3)
    jobs = result.jobs
    assert (jobs["lost_to_faults_gpu_s"][0] > 0) == lost
    assert (jobs["preemptions"][0] == 0) == lost
    assert any("duration of a job contains its checkpoints" in note for note in result.notes)
    calm = case.model_copy(update={"faults": type(case.faults)()})
    assert simulate(calm).jobs["completion_s"][0] == pytest.approx(5000.0, abs=3.0)


def test_spot_reclaim_without_notice_loses_what_was_not_saved() -> None:
    case = scenario(
        cluster={"nodes": [{"name": "spot", "gpus": 1}, {"name": "own", "gpus": 1}]},
        workload={"jobs": [rigid("a", 0, 2, 5000) | {"checkpoint": {"interval": "never"}}]},
        faults={"spot": {"group": "spot", "mtbf": 3000.0, "notice": 0.0, "away": 100.0}},
        restart=EXACT,
    )
    result = simulate(case, seed=1)
    assert result.jobs["preemptions"][0] == 0
    assert result.jobs["lost_to_faults_gpu_s"][0] > 0


def test_faults_are_the_same_for_every_policy() -> None:
    def downtime(policy: str) -> float:
        case = pool([rigid("a", 0, 1, 1e5)], faults={"crash": {"mtbf": 2e4, "repair": 500.0}}, restart=EXACT)
        return float(simulate(case, policy, seed=5).jobs["queueing_s"][0])

    assert downtime("fifo") == downtime("srtf") == downtime("las")


@dataclass(frozen=True)
class Broken(Stage):
    """Raises, or plans nonsense."""

    name: ClassVar[str] = "broken"
    kind: ClassVar[Kind] = "tasks"
    how: str = "raise"

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        if observation.time_s < 10:
            return plan, memory
        if self.how == "raise":
            raise RuntimeError("out of ideas")
        return plan.with_(allocation=Allocation.of([(0, [0, 0])])), memory


@dataclass(frozen=True)
class Idle(AllocationStage):
    """Starts nothing, ever."""

    name: ClassVar[str] = "idle"
    order: ClassVar[str] = "none"
    blocking: ClassVar[str] = "all"
    preemption: ClassVar[str] = "never"

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        return plan, memory


@dataclass(frozen=True)
class Late(Idle):
    """Starts the k-th job at the earliest at (k + 1) * `wait_s`."""

    wait_s: float = 600.0

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        due = [row for row in observation.waiting.tolist() if observation.time_s >= (row + 1) * self.wait_s]
        return (plan.with_(allocation=Allocation.of([(due[0], [0])])) if due else plan), memory


def test_a_policy_that_waits_often_but_never_for_long_is_not_stalled() -> None:
    jobs = [rigid(name, 0, 1, 1) for name in "abc"]
    case = pool(jobs, gpus=1, decide={"every": 1.0, "on_events": False})
    result = run(case, policy=Policy("late", (Late(),)))
    assert result.jobs["start_s"].tolist() == [600, 1200, 1800]
    with pytest.raises(RunFailed, match="leaves 3 jobs waiting on an idle cluster"):
        run(case, policy=Policy("late", (Late(wait_s=1100.0),)))


@pytest.mark.parametrize(
    ("how", "message"), [("raise", "RuntimeError: out of ideas"), ("nonsense", "infeasible plan: allocation")]
)
def test_a_broken_stage_is_named_and_the_last_records_are_kept(how: str, message: str) -> None:
    policy = Policy("broken", (make_stage("fifo"), Broken(how)))
    jobs = [rigid("a", 0, 2, 3), rigid("b", 12, 1, 3)]
    with pytest.raises(RunFailed, match=f"stage broken at 12 s: {message}") as failure:
        run(pool(jobs), policy=policy)
    records = failure.value.run
    assert records.jobs["completion_s"][0] == 3
    assert math.isnan(records.jobs["completion_s"][1])
    assert records.stopped is not None


@dataclass(frozen=True)
class Watching(Stage):
    """Keeps what it has seen of the variation of steps."""

    name: ClassVar[str] = "watching"
    kind: ClassVar[Kind] = "tasks"
    seen: list[float] = field(default_factory=list)

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        self.seen.extend(observation.workers.step_cov.tolist())
        return plan, memory


@pytest.mark.parametrize("algorithm", ["ring", "async-parameter-server"])
@pytest.mark.parametrize("event_by_event", [False, True])
def test_a_worker_that_waits_for_input_computes_without_variation(algorithm: str, event_by_event: bool) -> None:
    case = scenario(
        cluster={"nodes": [{"count": 2, "gpus": 1, "ingest": 50.0}]},  # half of what a GPU could take
        workload={
            "models": {"m": model(exchange={"alpha": 0.0, "rate": 1e10, "algorithm": algorithm})},
            "jobs": [training(steps=40)],
        },
        decide={"every_steps": 5},
    )
    watching = Watching()
    run(case, policy=Policy("watch", (make_stage("fifo"), watching)), event_by_event=event_by_event)
    seen = [value for value in watching.seen if not math.isnan(value)]
    assert len(seen) >= 4
    assert max(seen) < 1e-6


class Rounds(Idle):
    """Starts nothing, and asks to be asked again."""

    name: ClassVar[str] = "rounds"

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        return plan.with_(revisit_s=observation.time_s + 60.0), memory


def test_a_policy_that_starts_nothing_in_any_of_its_rounds_ends_the_run() -> None:
    with pytest.raises(RunFailed, match="leaves 1 jobs waiting on an idle cluster") as ended:
        run(pool([rigid("a", 0, 1, 1)]), policy=Policy("rounds", (Rounds(),)))
    assert ended.value.run.totals["decisions"] <= 1002


@pytest.mark.parametrize("decide", [{}, {"every": 5.0}])
def test_a_policy_that_starts_nothing_ends_the_run(decide: dict[str, float]) -> None:
    with pytest.raises(RunFailed, match="leaves 1 jobs waiting on an idle cluster"):
        run(pool([rigid("a", 0, 1, 1)], decide=decide), policy=Policy("idle", (Idle(),)))


def test_jobs_that_cannot_be_run_are_refused_before_the_run() -> None:
    with pytest.raises(InputError, match="asks for 5 GPUs, the cluster has 4"):
        simulate(pool([rigid("a", 0, 5, 1)]))
    with pytest.raises(InputError, match="no jobs"):
        simulate(pool([]))


def test_a_horizon_stops_the_run_with_what_is_done() -> None:
    result = simulate(pool([rigid("a", 0, 1, 5), rigid("b", 0, 1, 50)], horizon=20.0))
    assert result.jobs["completion_s"][0] == 5
    assert math.isnan(result.jobs["completion_s"][1])
    assert result.summary()["completed"] == 1
    assert result.totals["makespan_s"] == 20
    assert result.jobs["busy_gpu_s"].tolist() == [5, 20]
    assert result.totals["idle_gpu_s"] == 4 * 20 - 25


@pytest.mark.parametrize("event_by_event", [False, True])
def test_at_the_horizon_running_jobs_are_booked(event_by_event: bool) -> None:
    case = scenario(
        cluster={"gpus": 2},
        workload={"models": {"m": model()}, "jobs": [training(steps=1000, sync_interval=3)]},
        horizon=10.04,
    )
    result = simulate(case, event_by_event=event_by_event)
    assert result.jobs["steps"][0] == 99  # 33 whole periods of 0.3 s
    assert result.jobs["busy_gpu_s"][0] == pytest.approx(2 * 10.04)
    assert result.totals["idle_gpu_s"] == pytest.approx(0.0, abs=1e-9)


def test_co_located_jobs_slow_each_other_down() -> None:
    shared = training(gpus=1, gpu_share=0.5, global_batch=10)
    models = {"m": model(share_kappa=1.0, interference=0.2)}
    one = scenario(cluster={"gpus": 1}, workload={"models": models, "jobs": [shared]})
    two = scenario(cluster={"gpus": 1}, workload={"models": models, "jobs": [shared | {"count": 2}]})
    alone_s = 100 * 10 * 0.01 / (2 * 0.5 / 1.5)
    assert simulate(one).jobs["completion_s"][0] == pytest.approx(alone_s)
    assert simulate(two).jobs["completion_s"].tolist() == pytest.approx([alone_s * 1.1] * 2)


def test_a_training_job_slows_down_while_a_rigid_job_shares_its_gpu() -> None:
    jobs = [training(gpus=1, gpu_share=0.5, global_batch=10), rigid("r", 5.0, 1, 5.0) | {"gpu_share": 0.5}]
    models = {"m": model(share_kappa=1.0, interference=0.2)}
    together = scenario(cluster={"gpus": 1}, workload={"models": models, "jobs": jobs})
    step_s = 10 * 0.01 / (2 * 0.5 / 1.5)
    done_s = simulate(together).jobs["completion_s"][0]
    assert done_s == pytest.approx(100 * step_s + 5.0 * (1.0 - 1.0 / 1.1), abs=step_s)


def digest(folder: Path) -> str:
    """What a run with noise and faults writes into the folder, as one number."""
    case = scenario(
        cluster={"nodes": [{"count": 6, "gpus": 2}, {"name": "slow", "count": 2, "gpus": 2, "speed": 0.7}]},
        workload={
            "models": {"m": model(parameters=1e7)},
            "jobs": [
                {
                    "name": "t",
                    "count": 4,
                    "spacing": 20.0,
                    "gpus": 6,
                    "model": "m",
                    "epochs": 2,
                    "global_batch": 60,
                    "data": {"samples": 3000, "sample_size": 1e5, "shards": 20, "placement": {"kind": "skewed"}},
                },
                {"name": "r", "count": 30, "spacing": 3.0, "gpus": 2, "duration": 17.0},
            ],
        },
        noise={"step_cov": 0.2},
        faults={"crash": {"mtbf": 300.0, "repair": 50.0}},
        decide={"every_steps": 10},
    )
    simulate(case, "s1+s2+s3+las", 4).write(folder)
    written = (folder / "jobs.parquet").read_bytes() + (folder / "summary.json").read_bytes()
    return hashlib.sha256(written).hexdigest()


def test_same_inputs_give_the_same_bytes_in_another_process(tmp_path) -> None:
    """Here, and in one whose hashes are others'."""
    env = os.environ | {"PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") == "2" else "2"}
    program = f"from pathlib import Path; from {__name__} import digest; print(digest(Path({str(tmp_path)!r})))"
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == digest(tmp_path / "here")


def test_no_gpu_is_held_twice_at_any_time() -> None:
    rng = np.random.default_rng(0)
    jobs = [
        rigid(f"j{k}", float(rng.integers(0, 50)), int(rng.integers(1, 4)), float(rng.integers(1, 30)))
        for k in range(60)
    ]
    result = simulate(pool(jobs, gpus=6), "fifo-greedy").jobs
    times = np.unique(np.concatenate((result["start_s"], result["completion_s"])))
    for t in times:
        held = (result["start_s"] <= t) & (t < result["completion_s"])
        assert result["gpus"][held].sum() <= 6


def asynchronous(penalty: float = 0.0, **job: object):
    spec = {"alpha": 0.0, "rate": 1e9, "algorithm": "async-parameter-server"}
    return scenario(
        cluster={"nodes": [{"name": "fast", "count": 2, "gpus": 1}, {"name": "slow", "gpus": 1, "speed": 0.5}]},
        workload={
            "models": {"m": model(exchange=spec, staleness=penalty)},
            "jobs": [training(gpus=3, global_batch=30, sync_interval=50, **job)],
        },
    )


def test_asynchronous_workers_do_not_wait_for_the_slow_one() -> None:
    synchronous = 100 * 0.2  # the slow node needs 0.2 s for its ten samples
    result = simulate(asynchronous())
    # Together the workers train 100 + 100 + 50 samples a second; rounds of 1,500 end with at most a step's wait.
    assert 3000 / 250 - 1e-9 <= result.jobs["completion_s"][0] <= 3000 / 250 + 2 * 0.2 < synchronous
    assert result.jobs["samples"][0] == 3000


def test_staleness_costs_efficiency() -> None:
    fresh, stale = simulate(asynchronous()), simulate(asynchronous(penalty=0.1))
    assert stale.jobs["samples"][0] > 1.1 * fresh.jobs["samples"][0]
    assert stale.jobs["useful_samples"][0] >= 3000 * (1 - 1e-9)


def test_an_asynchronous_job_survives_a_crash_with_every_sample_once() -> None:
    job = {"steps": None, "epochs": 2, "data": {"samples": 3000, "sample_size": 1e5, "shards": 7}, "workers_min": 1}
    case = asynchronous(**job)
    faults = case.faults.model_validate(crash(5.0, 1000.0, "fast-1"))
    result = simulate(case.model_copy(update={"faults": faults}))
    assert result.jobs["samples"][0] == 6000
    assert result.jobs["restarts"][0] == 1


def test_a_horizon_before_the_first_arrival_makes_nothing_negative() -> None:
    case = scenario(
        cluster={"nodes": [{"gpus": 2, "accelerator": "h100_sxm"}]},
        workload={"jobs": [rigid("late", 100, 1, 10)]},
        horizon=50.0,
    )
    made = simulate(case, timeline=True)
    assert made.totals["makespan_s"] == made.totals["idle_gpu_s"] == 0.0
    assert all(not value < 0.0 for value in made.summary().values())


@pytest.mark.parametrize("horizon", [None, 3.0])
def test_exchanged_bytes_are_those_of_the_steps_that_were_made(horizon: float | None) -> None:
    job = training(global_batch=8)
    case = scenario(
        cluster={"nodes": [{"gpus": 2}]},
        workload={"models": {"m": model(parameters=1e8)}, "jobs": [job]},
        horizon=horizon,
    )
    made = simulate(case)
    assert made.jobs["steps"][0] == 100 if horizon is None else 10 < made.jobs["steps"][0] < 100
    assert made.totals["exchanged_bytes"] == pytest.approx(2e8 * made.jobs["steps"][0])
