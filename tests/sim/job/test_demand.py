"""Jobs of a trace that are given a workload."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.job import demand as made_of
from equipoise.sim.job.checkpoints import Checkpoints, write_s, young_daly_s
from equipoise.sim.job.demand import Demand, expand, make_demand
from equipoise.sim.job.paces import _guess_note, _rate, make_paces, typical_speed
from equipoise.sim.network.topology import Topology
from equipoise.sim.scenario.faults import Crash
from equipoise.sim.scenario.model import Checkpoint, JobSpec, Model, Restart, Scenario, TrainingJobs
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.traces.read import read_trace
from equipoise.sim.traces.trace import make_trace
from tests.scenarios import model, scenario

PROFILE = load_profile("catalogue")


def cluster_of(case: Scenario) -> Cluster:
    return Cluster(case.cluster, PROFILE, Topology(case.cluster, PROFILE))


def demand_of(*jobs: dict[str, Any], **sections: Any) -> Demand:
    case = scenario(cluster={"nodes": [{"count": 2, "gpus": 4}]}, workload={"jobs": list(jobs), **sections})
    return make_demand(case, None, cluster_of(case))


@pytest.mark.parametrize(("steps_max", "steps", "batch"), [(2000, 400, 64), (50, 50, 512)])
def test_a_job_of_a_trace_that_trains_takes_as_long_as_the_trace_says(
    tmp_path: Path, steps_max: int, steps: int, batch: int
) -> None:
    """128 s on two GPUs at 10 ms a sample: 400 steps of 64 samples, or 50 of eight times as many."""
    path = tmp_path / "t.csv"
    path.write_text("job_id,arrival_s,gpus,duration_s\n1,0,2,128\n")
    training = {"count": 1, "models": ["m"], "global_batch": 64, "steps_max": steps_max}
    case = scenario(workload={"models": {"m": model()}, "trace": {"file": str(path), "training": training}})
    job = make_demand(case, read_trace(path), cluster_of(case)).training[0]
    path.write_text("job_id,arrival_s,gpus,duration_s\n1,0,1,128\n")
    alone = make_demand(case, read_trace(path), cluster_of(case)).training[0]
    assert (alone.gpus, alone.workers_max, alone.steps) == (1, 2, {400: 200, 50: 50}[steps])
    assert (job.steps, job.global_batch) == (steps, batch)


def test_jobs_stand_in_order_of_arrival_and_then_as_listed() -> None:
    found = demand_of(
        {"name": "a", "duration": 5.0, "count": 3, "spacing": 10.0, "arrival": 1.0},
        {"name": "b", "arrival": 11.0, "duration": 7.0},
    )
    assert found.name == ["a-0", "a-1", "b", "a-2"]
    assert found.arrival_s.tolist() == [1, 11, 11, 21]
    assert found.id.tolist() == [0, 1, 3, 2]
    assert found.duration_s.tolist() == [5, 5, 7, 5]
    one = JobSpec(name="x", duration=1.0, arrival=3.0)
    assert expand(one) == [("x", 3.0, one)]
    with pytest.raises(InputError, match="workload: no jobs; give"):
        demand_of()


def test_time_limits_act_as_given_and_those_of_a_trace_not_before_its_jobs_ended() -> None:
    limits = {"time_limit_s": np.array([8.0, 3.0, np.nan, 0.0])}
    trace = make_trace(np.arange(4), np.zeros(4), np.ones(4, int), np.full(4, 5.0), columns=limits)
    jobs = [{"duration": 9.0, "time_limit": 5.0}]
    for estimate, thought in (("duration", [5, 5, 5, 5, 5]), ("time-limit", [5, 8, 3, 5, 5])):
        case = scenario(workload={"jobs": jobs}, decide={"estimate": estimate})
        found = make_demand(case, trace, cluster_of(case))
        assert found.duration_s.tolist() == [9, 5, 5, 5, 5]
        assert found.limit_s.tolist() == [5, 8, 5, math.inf, math.inf]
        assert found.estimates_s(np.ones(5)).tolist() == thought


def test_duration_jobs_may_start_with_fewer_gpus_in_whole_pods() -> None:
    """Eight GPUs in four pods of two: fewer in steps of two, where the fewest are whole pods, else one by one."""
    found = demand_of(
        *[{"gpus": 8, "duration": 1.0}] * 7,
        {"gpus": 8, "duration": 1.0, "gpus_min": 8},
        {"gpus": 8, "duration": 1.0, "gpus_min": 3},
    )
    least = np.array([4, 3, 8, 0.5, 7.5, np.nan, 2, np.nan, np.nan])
    pods = np.array([4, 4, 4, 4, 4, 4, 3, np.nan, np.nan])
    told = made_of.replace(found, columns={"gpus_min": least, "pods": pods})
    listed = {8: JobSpec(gpus=8, duration=1.0, gpus_min=3), 7: JobSpec(gpus=8, duration=1.0, gpus_min=8)}
    assert made_of._shrinks(told, listed) == {0: (4, 2), 1: (3, 1), 4: (8, 2), 6: (2, 1), 8: (3, 1)}
    alone = made_of.replace(found, columns={"gpus_min": least})
    assert made_of._shrinks(alone, {})[0] == (4, 1)
    train = made_of.replace(told, training={0: listed[8]})
    assert 0 not in made_of._shrinks(train, {})


def test_what_jobs_take_of_cores_memory_and_nodes() -> None:
    found = made_of.replace(
        demand_of(*[{"duration": 1.0}] * 3),
        columns={"cpus": np.array([4, np.nan, 1]), "nodes": np.array(["a", "b", "c"], dtype=object)},
    )
    assert made_of._tres(found, {2: JobSpec(duration=1.0, cpus=7, host_memory=5.0, nodes=2)}) == [
        (4, 0, 0),
        (0, 0, 0),
        (7, 5, 2),
    ]


def test_a_traces_jobs_are_numbered_after_the_scenarios_own(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("job_id,arrival_s,gpus,duration_s,priority,queue\n7,3,1,5,2,q\n9,0,2,6,1,r\n")
    case = scenario(workload={"jobs": [{"name": "a", "duration": 4.0, "arrival": 1.0}] * 2})
    found = make_demand(case, read_trace(path), cluster_of(case))
    assert found.id.tolist() == [11, 0, 1, 9]
    assert found.name == ["9", "a", "a", "7"]
    assert found.duration_s.tolist() == [6, 4, 4, 5]
    assert found.priority.tolist() == [1, 1, 1, 2]
    assert found.columns["queue"].tolist() == ["r", "", "", "q"]
    assert make_demand(scenario(), read_trace(path), cluster_of(case)).id.tolist() == [9, 7]


def test_rows_of_a_trace_that_train_are_evenly_spread() -> None:
    case = scenario(workload={"models": {"m": model(), "n": model()}})
    names = [""] * 9
    names[4] = "n"
    rows = np.arange(9)
    trace = make_trace(rows, rows * 1.0, rows + 1, rows + 1.0, model=names, source="t", told=False)
    wanted = TrainingJobs(count=3, models=("m", "n"))
    assert made_of._models_of(case, wanted, trace) == {0: "m", 4: "n", 8: "m"}
    names[4] = "x"
    wrong = make_trace(rows, rows * 1.0, rows + 1, rows + 1.0, model=names, source="t", told=False)
    with pytest.raises(InputError, match="job 4 of the trace: unknown model 'x'"):
        made_of._models_of(case, wanted, wrong)


def test_jobs_larger_than_what_there_is_are_counted() -> None:
    nodes = [{"name": "a", "gpus": 4, "accelerator": "generic"}, {"name": "b", "gpus": 2, "accelerator": "h100_sxm"}]

    def made(*gpus: int, **more: Any) -> Demand:
        jobs = [{"name": f"j{k}", "gpus": n, "duration": 1.0} | more for k, n in enumerate(gpus)]
        case = scenario(cluster={"nodes": nodes}, workload={"jobs": jobs})
        return make_demand(case, None, cluster_of(case))

    assert len(made(4, 4)) == 2
    assert len(made(6, mix_gpus=True)) == 1
    with pytest.raises(InputError, match=r"job j0 asks for 5 GPUs of one model, the cluster has 4; a gang over"):
        made(5)
    with pytest.raises(InputError, match=r"job j1 asks for 7 GPUs, the cluster has 6 \(and 1 more such jobs\)$"):
        made(1, 7, 8, mix_gpus=True)


def test_paces_by_measured_rates_and_by_data_sheets() -> None:
    """Twice as fast where measured with four GPUs; the rate of the largest number measured that is no larger."""
    assert [_rate({2: 10.0, 4: 30.0}, gpus) for gpus in (1, 2, 3, 4, 9)] == [10, 10, 10, 30, 30]
    assert math.isnan(_rate({}, 1))
    generic, h100 = PROFILE.accelerator("generic"), PROFILE.accelerator("h100_sxm")
    guess = math.sqrt(9.895 * 3.35)  # of 100 TFLOP/s and 1 TB/s
    assert typical_speed(h100, generic) == pytest.approx(guess)
    assert typical_speed(generic, h100) == pytest.approx(1 / guess)
    nodes = [{"name": "a", "gpus": 4, "accelerator": "generic"}, {"name": "b", "gpus": 4, "accelerator": "h100_sxm"}]
    rates = [
        {"job_type": "t", "gpu_model": kind, "gpus": gpus, "rate": rate}
        for kind, gpus, rate in (
            ("generic", 1, 10.0),
            ("h100_sxm", 1, 15.0),
            ("generic", 4, 30.0),
            ("h100_sxm", 4, 60.0),
        )
    ]
    table = {"rates": [*rates, {"job_type": "u", "gpu_model": "generic", "gpus": 1, "rate": 1.0}]}
    case = scenario(cluster={"nodes": nodes}, workload={"throughputs": table, "jobs": [{"duration": 1.0}]})
    kinds, gpus = ["t", "t", "u", "", "u"], np.array([2, 4, 1, 1, 1])
    own = np.array([False, False, False, False, True])
    plain = scenario(cluster={"nodes": nodes[:1]}, workload={"jobs": [{"duration": 1.0}]})
    assert make_paces(plain, cluster_of(plain), gpus[:1], [""], np.ones(1, bool), np.zeros(1, bool)).alike
    found = make_paces(case, cluster_of(case), gpus, kinds, np.ones(5, bool), own)
    assert np.allclose(found.speed[found.kind], [[1, 1.5], [1, 2], [1, guess], [1, guess], [1, 1]])
    assert "which has no rates of u on h100_sxm" in found.note
    assert not found.alike
    known = make_paces(case, cluster_of(case), gpus[:2], kinds[:2], np.ones(2, bool), own[:2])
    assert known.note == ""
    recorded = make_paces(case, cluster_of(case), gpus[4:], kinds[4:], np.ones(1, bool), own[4:])
    assert recorded.note.startswith("durations of the trace are taken as equal on generic and h100_sxm")


def test_three_rates_that_are_missing_are_named() -> None:
    speeds = np.array([1.0, 2.5])
    rows = [f"t{k} on b" for k in range(5)]
    told = [_guess_note(["a", "b"], speeds, 0, rows[:n]).partition("throughputs")[2] for n in (0, 3, 5)]
    assert told == [
        ", or a speed of each node group",
        ", which has no rates of t0 on b, t1 on b, t2 on b, or a speed of each node group",
        ", which has no rates of t0 on b, t1 on b, t2 on b and 2 more, or a speed of each node group",
    ]
    assert "(a 1.00, b 2.50)" in _guess_note(["a", "b"], speeds, 0, [])


def test_failures_of_a_node_in_four_ways() -> None:
    """On nodes of eight GPUs."""
    ways: list[dict[str, Any]] = [
        {"mtbf": 5.0},
        {"per_node_week": 2.0},
        {"gpu_hours": 16.0},
        {"job": {"gpus": 64, "mttf": 10.0}},
        {"job": {"gpus": 4, "mttf": 10.0}},
    ]
    assert [Crash.model_validate(way).node_mtbf_s(8) for way in ways] == [5, 3.5 * 86_400, 7200, 80, 10]


def test_how_long_a_checkpoint_takes_to_write() -> None:
    """Two nodes whose disks write 2 and 3 bytes/s, and whose NICs carry 10 bytes/s each."""
    assert young_daly_s(2.0, 25.0) == 10.0
    assert young_daly_s(2.0, math.inf) == math.inf
    nodes = [{"name": f"n{k}", "storage_rate": rate, "nic": 10.0} for k, rate in enumerate((2.0, 3.0))]
    cluster = cluster_of(scenario(cluster={"nodes": nodes}))
    both, sized = np.array([0, 1]), Checkpoint(size=60.0)

    def took(spec: Checkpoint, size: float | None = None, **restart: Any) -> float:
        return write_s(spec, size, Restart.model_validate(restart), cluster, both)

    assert took(sized) == 12.0
    assert took(Checkpoint()) == 60.0  # nothing is known of it
    assert took(Checkpoint(), 120.0) == 24.0
    assert took(Checkpoint(), 120.0, checkpoint_write=7.0) == 7.0
    assert took(sized, 120.0, checkpoint_write=7.0) == 12.0
    assert took(sized, storage={"kind": "shared", "rate": 15.0, "latency": 1.0}) == 1 + 4
    assert took(sized, storage={"kind": "shared", "rate": 99.0}) == 3.0  # the NICs
    assert took(sized, storage={"kind": "object", "node_rate": 5.0}) == 6.0
    own = Model.model_validate({"sample_time": 1.0, "parameters": 10.0})

    def placed(spec: Checkpoint) -> Checkpoints:
        saves = Checkpoints(spec, own, cluster, lambda nodes: 300.0 / len(nodes), Restart())
        saves.place(both)
        return saves

    derived = placed(sized.model_copy(update={"interval": "young-daly"}))
    assert (derived.size_bytes, derived.interval_s) == (160.0, math.sqrt(2 * 12 * 150))
    given = placed(Checkpoint(interval=9.0))
    assert (given.interval_s, given.save_s) == (9.0, 32.0)
    assert placed(Checkpoint(interval="never")).interval_s == math.inf


def test_jobs_that_may_start_with_what_a_limit_allows_stay_and_others_are_left_out() -> None:
    """Three GPUs: of a duration job that may shrink and of a training job the fewest count."""
    jobs = [
        {"name": "a", "gpus": 2, "duration": 11.0, "priority": 5},
        {"name": "b", "gpus": 4, "duration": 12.0},
        {"name": "c", "gpus": 5, "duration": 13.0, "gpus_min": 3, "priority": 7},
        {"name": "d", "gpus": 6, "model": "m", "global_batch": 12, "steps": 9, "workers_min": 3, "cpus": 4},
        {"name": "e", "gpus": 4, "model": "m", "global_batch": 12, "steps": 9},
    ]
    listed = [{"arrival": 20.0 - k, "qos": "q"} | job for k, job in enumerate(jobs)]

    def made(*rows: int) -> Demand:
        case = scenario(
            cluster={"nodes": [{"count": 2, "gpus": 4}]},
            workload={"models": {"m": model()}, "jobs": [listed[row] for row in rows]},
            queues={"qos": [{"name": "q", "gpus": 3}], "too_large": "leave-out"},
        )
        return make_demand(case, None, cluster_of(case))

    found = made(0, 1, 2, 3, 4)
    assert found.name == ["d", "c", "a"]
    assert found.arrival_s.tolist() == [17, 18, 20]
    assert found.gpus.tolist() == [6, 5, 2]
    assert found.duration_s.tolist()[1:] == [13, 11]
    assert found.priority.tolist() == [1, 7, 5]
    assert found.id.tolist() == [3, 2, 0]
    assert ([*found.training], found.shrinks) == ([0], {1: (3, 1)})
    assert found.mixes.tolist() == [True, False, False]
    told = "jobs that start with fewer GPUs than requested, because a limit allows no more: 2"
    assert found.notes == (told, "2 jobs left out: they can never start; first e: the limit QOS q allows 3")
    assert found.claims.smaller == {0: 3, 1: 3}
    assert found.columns["qos"].tolist() == ["q"] * 3
    assert found.claims.claim.tolist() == [0] * 3
    assert len(found.checkpoint) == len(found.paces.kind) == len(found.gpu_share) == 3
    assert made(0).notes == ()
    with pytest.raises(InputError, match="queues: no job is left, because the limits let none of them start"):
        made(1, 4)


def test_time_limits_are_of_their_jobs_whatever_the_order_of_arrival() -> None:
    found = demand_of(
        {"arrival": 9.0, "duration": 7.0, "time_limit": 3.0},
        {"arrival": 2.0, "duration": 8.0},
        {"arrival": 4.0, "duration": 6.0, "time_limit": 5.0, "cpus": 2, "user": "ann"},
    )
    assert (found.duration_s.tolist(), found.limit_s.tolist()) == ([8, 6, 7], [math.inf, 5, 3])
    assert found.columns["time_limit_s"][1:].tolist() == [5, 3]
    assert found.columns["user"].tolist() == ["", "ann", ""]
    assert demand_of({"duration": 5.0}).notes == ()


def test_a_traces_jobs_that_train_have_whole_micro_batches(tmp_path: Path) -> None:
    """Two workers of 3 samples each at least: 30 ms a step; 90 s in at most 400 steps need 7.5 times as much."""
    path = tmp_path / "t.csv"
    path.write_text("job_id,arrival_s,gpus,duration_s\n1,0,2,90\n2,5,2,0.001\n3,7,1,6\n")
    training = {
        "count": 2,
        "models": ["m"],
        "global_batch": 4,
        "micro_batch": 3,
        "steps_max": 400,
        "shards": 7,
        "sample_size": 5.0,
    }
    case = scenario(workload={"models": {"m": model()}, "trace": {"file": str(path), "training": training}})
    found = make_demand(case, read_trace(path), cluster_of(case))
    assert [*found.training] == [0, 2]
    first, last = found.training[0], found.training[2]
    assert (first.global_batch, first.steps, first.workers_min, first.workers_max) == (45, 409, 1, 4)
    assert first.data is not None
    assert (first.data.samples, first.data.shards, first.data.sample_size) == (45 * 409, 7, 5.0)
    assert (last.global_batch, last.steps, last.gpus, last.arrival, last.workers_max) == (4, 150, 1, 7.0, 2)
    assert np.isnan(found.duration_s).tolist() == [True, False, True]
    assert found.mixes.tolist() == [True, False, True]
    short = scenario(
        workload={"models": {"m": model()}, "trace": {"file": str(path), "training": training | {"count": 9}}}
    )
    assert make_demand(short, read_trace(path), cluster_of(short)).training[1].steps == 1
