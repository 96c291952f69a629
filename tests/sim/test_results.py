"""What a run leaves behind: totals, columns and notes, from accounts that can be added up by hand."""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from equipoise.policies.contract import AllocationStage
from equipoise.policies.registry import make_policy
from equipoise.sim import results as made
from equipoise.sim.cost.memory import UNBOUNDED
from equipoise.sim.fairness import jain
from equipoise.sim.job.account import BUSY, LOST_TO_FAULTS, RESTART, USEFUL, Use
from equipoise.sim.ledger.serving import ServingAccount
from equipoise.sim.record import Run, gpus_class
from equipoise.sim.results import Results
from equipoise.sim.run import RunFailed, RunInterrupted, drawn_jobs, is_random, redraws, run_identities, run_inputs
from tests.scenarios import model, scenario

NAN = math.nan


def few(**more: Any) -> Any:
    return SimpleNamespace(**more)


# --- notes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "jobs", "free"),
    [
        ([(None, None)], [(3.0, None)], True),
        ([(None, None)], [], False),
        ([(None, None)], [(0.0, None)], False),
        ([(None, None)], [(0.0, 0.25), (3.0, None)], True),
        ([(None, None)], [(3.0, None), (4.0, 0.25)], False),
        ([(None, None), (70.0, None)], [(3.0, None)], False),
        ([(None, 5e8), (None, None)], [(3.0, None)], False),
    ],
)
def test_input_is_free_where_some_job_reads_and_nothing_says_what_it_costs(
    groups: list[Any], jobs: list[Any], free: bool
) -> None:
    cluster = few(groups=[few(ingest=ingest, local_read=read) for ingest, read in groups])
    training = {
        row: few(config=few(sample_bytes=size), model=few(preprocess_time=time))
        for row, (size, time) in enumerate(jobs)
    }
    world: Any = few(scenario=few(cluster=cluster), roster=few(training=training))
    assert made._input_free(world) == free


def passing(name: str, batch: int, asked: int, fits: list[float], limit: int | None = None) -> Any:
    """A training job; `fits`: bytes of each kind of GPU, of which 7 GB are held, and 2 GB a sample."""
    held = few(
        parameters=0.0, samples_per_pass=limit, memory=None, parallel=None, zero=0, optimizer=None, precision="fp32"
    )
    config = few(
        spec=few(global_batch=batch),
        asked=asked,
        model=held,
        memory_bytes=lambda k: fits[k],
        cluster=few(accelerators=fits),
    )
    return few(name=name, config=config)


def test_the_first_job_of_which_memory_splits_a_step_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def held(found: Any, memory_bytes: float, workers: int) -> int:
        assert workers == 3
        return int(min(found.samples_per_pass or UNBOUNDED, memory_bytes))

    monkeypatch.setattr(made, "samples_per_pass", held)
    fits = [passing("a", 22, 3, [8, 5]), passing("b", 24, 3, [8, 5])]
    assert made._passes(fits) == []
    split = passing("c", 25, 3, [3, 4])
    assert made._first_pass(split.config) == (4, 9)
    told = "memory holds 4 of the 9 samples of a worker's step, so it takes 3 passes"
    assert made._passes([*fits, split]) == [f"job c: {told}"]
    assert made._passes([*fits, split, *(passing(name, 90, 3, [8, 5]) for name in "def")]) == [
        f"job c (and 3 more jobs): {told}"
    ]
    assert made._first_pass(passing("f", 25, 3, [0, 0]).config) == (1, 9)
    assert made._first_pass(passing("g", 25, 3, [6, 2], limit=4).config) == (UNBOUNDED, 9)
    assert made._first_pass(passing("h", 25, 3, [3, 2], limit=4).config) == (3, 9)


@dataclass(frozen=True)
class Heeds(AllocationStage):
    """Heeds two of the rules."""

    name: ClassVar[str] = "heeds"
    honours: ClassVar[tuple[str, ...]] = ("fair share", "preemption")

    def refine(self, observation: Any, plan: Any, memory: Any) -> Any:
        """Never asked."""


def test_rules_that_a_policy_does_not_heed_are_told_each_by_its_name() -> None:
    def told(*stages: Any, jobs: Any = (), queue: Any = None, **more: Any) -> list[str]:
        one = {"reclaim": "never", "within": "never", "borrow_within": "never", "order": "best-effort"}
        queues = [few(**one), few(**(one | (queue or {})))]
        spec = {"priority": None, "backfill": None, "preemption": None, "fair_sharing": False, "queues": queues}
        case = few(queues=few(**(spec | more)), workload=few(jobs=[few(together=t) for t in jobs]))
        world: Any = few(scenario=case, policy=few(stages=stages))
        return made._left_aside(world)

    assert told() == told(jobs=[None, "rack required"]) == []
    assert told(priority=few(fairshare=0)) == ["priority"]
    assert told(priority=few(fairshare=1)) == ["priority", "fair share"]
    assert told(few(), Heeds(), priority=few(fairshare=1), preemption=few()) == ["priority"]
    assert told(backfill=few(depth=0)) == []
    assert told(backfill=few(depth=1), preemption=few(), fair_sharing=True) == [
        "backfill",
        "preemption",
        "fair sharing",
    ]
    assert told(queue={"reclaim": "any"}) == told(queue={"within": "lower"}) == ["reclaim"]
    assert told(queue={"borrow_within": "lower"}) == ["preemption while borrowing"]
    assert told(queue={"order": "strict"}) == ["queue order"]
    assert told(jobs=["rack preferred"]) == ["topology preferred"]


def test_rows_become_columns() -> None:
    found = made._columns([{"a": "x", "b": 2.5}, {"a": "y", "b": 3.0}])
    assert (found["a"].dtype, found["a"].tolist(), found["b"].tolist()) == (object, ["x", "y"], [2.5, 3.0])
    assert found["b"].dtype == np.float64
    assert made._columns([]) == {}


# --- totals ----------------------------------------------------------------------------------------------


def account(**more: Any) -> Any:
    given = {"samples": 40, "useful_samples": 32.5, "lost_samples": 3, "steps": 5}
    return few(**(given | more))


class Services(list[int]):
    """Services of a world, of which one held 6 GPU-seconds."""

    tenants: ClassVar[list[Any]] = []

    def close(self, end_s: float) -> None:
        self.closed_s = end_s


def world(**more: Any) -> Any:
    """Three jobs on 3 + 1 GPUs from 2 s on, of which the second trains: done at 9, 12 and 7 s."""
    rigid = np.zeros((3, len(Use)))
    rigid[0, [BUSY, RESTART, LOST_TO_FAULTS]], rigid[2, BUSY] = (4.0, 1.0, 2.0), 3.0
    gpu_s = np.zeros(len(Use))
    gpu_s[[BUSY, USEFUL]] = 10.0, 8.0
    training = few(
        gpu_s=gpu_s,
        computed_gpu_s=9.5,
        exchanged_bytes=70.0,
        progress=few(account=account()),
        model=few(flop_per_sample=None, tokens=None, precision="bf16"),
    )
    groups = [few(name="own", count=1, may_be_away=False), few(name="spot", count=2, may_be_away=True)]
    case = few(
        cluster=few(groups=groups), faults=few(spot=None), energy=few(carbon=None, region=None, pue=1.5, begin=0.0)
    )

    class Demand:
        arrival_s, id = np.array([2.0, 3.0, 5.0]), np.array([4, 6, 8])
        name, gpus = ("a", "b", "c"), np.array([1, 2, 3])

        def __len__(self) -> int:
            return 3

    given = {
        "rigid": few(gpu_s=rigid),
        "demand": Demand(),
        "clock": few(now=20.0),
        "lasts": False,
        "services": Services(),
        "roster": few(
            training={1: training},
            completion_s=np.array([9.0, 12.0, 7.0]),
            start_s=np.array([2.0, 4.0, 5.0]),
            queueing_s=lambda now_s: np.array([0.0, 1.0, now_s]),
            preemptions=np.array([0, 2, 1]),
            restarts=np.array([1, 0, 3]),
        ),
        "held_late": few(after_s=5.0, gpu_s=8.0),
        "decided": 17,
        "refusals": [1, 2],
        "ran_on": None,
        "transfers": few(moved_bytes=90.0),
        "scenario": case,
        "prices": few(usd_per_h=np.array([36.0, 72.0, 18.0])),
        "nodes": few(unpaid_s=lambda: np.array([0.0, 4.0, 1.0])),
    }
    found = few(**(given | more))

    class Gpus:
        model = np.array([0, 0, 0, 1])

        def __len__(self) -> int:
            return 4

    class Nodes:
        gpus = np.array([3, 0, 1])

        def __len__(self) -> int:
            return 3

    found.cluster = few(gpus=Gpus(), nodes=Nodes(), accelerators=more.get("accelerators", []))
    return found


def results(**more: Any) -> Any:
    return Results(world(**more), keeps_timeline=False)


def test_a_run_ends_with_its_last_job_or_when_it_was_stopped() -> None:
    ended = results()
    assert (ended.start_s, ended.end_s) == (2.0, 12.0)
    assert ended.world.services.closed_s == 12.0
    assert results(lasts=True).end_s == 20.0
    stopped = world()
    stopped.roster.completion_s[1] = NAN
    assert Results(stopped, keeps_timeline=False).end_s == 20.0
    nothing = world()
    nothing.roster.completion_s = np.zeros(0)
    assert Results(nothing, keeps_timeline=False).end_s == 20.0
    early = world(clock=few(now=1.5), lasts=True)
    assert Results(early, keeps_timeline=False).start_s == 1.5


def test_computing_of_all_jobs_is_gathered() -> None:
    found = results()
    assert found.computed_gpu_s.tolist() == [6.0, 9.5, 3.0]
    assert found.gpu_s[:, BUSY].tolist() == [4.0, 10.0, 3.0]
    assert found.gpu_s[:, USEFUL].tolist() == [0.0, 8.0, 0.0]


def test_totals_add_up() -> None:
    """Four GPUs for ten seconds, of which 20 GPU-seconds are held; after the last arrival 28, of which 8."""
    totals = results()._totals()
    assert {name: totals[name] for name in list(totals)[:9]} == {
        "gpus": 4.0,
        "nodes": 3.0,
        "end_s": 12.0,
        "makespan_s": 10.0,
        "idle_gpu_s": 20.0,
        "idle_late_gpu_s": 20.0,
        "decisions": 17.0,
        "refusals": 2.0,
        "exchanged_bytes": 70.0,
    }
    assert totals["transferred_bytes"] == 90.0
    assert [totals[name] for name in ("model_flop", "peak_flop", "tokens")] == [0.0, 0.0, 0.0]
    assert "serving_gpu_s" not in totals
    serving = results(services=Services([1]))
    serving.serving = ServingAccount(gpu_s=6.0)
    served = serving._totals()
    assert (served["idle_gpu_s"], served["serving_gpu_s"]) == (14.0, 6.0)
    assert "idle_late_gpu_s" not in served
    assert results(held_late=few(after_s=15.0, gpu_s=0.0))._totals()["idle_late_gpu_s"] == 0.0


def test_what_is_left_of_a_sum_by_rounding_is_nothing() -> None:
    for held_s, idle_s in ((28.0 * (1 - 1e-10), 0.0), (28.0 * (1 + 1e-10), 0.0)):
        assert results(held_late=few(after_s=5.0, gpu_s=held_s))._totals()["idle_late_gpu_s"] == idle_s
    assert results(held_late=few(after_s=5.0, gpu_s=28.0 * (1 - 1e-8)))._totals()["idle_late_gpu_s"] > 0.0
    full = world()
    for left, idle in ((1e-10, False), (1e-8, True)):
        full.rigid.gpu_s[2, BUSY] = 3.0 + 20.0 - 40.0 * left
        assert (Results(full, keeps_timeline=False)._totals()["idle_gpu_s"] != 0.0) == idle


def test_columns_of_jobs() -> None:
    columns = results()._jobs()
    assert columns["samples"].tolist() == [0, 40, 0]
    assert columns["useful_samples"].tolist() == [0.0, 32.5, 0.0]
    assert (columns["lost_samples"].tolist(), columns["steps"].tolist()) == ([0, 3, 0], [0, 5, 0])
    assert columns["queueing_s"].tolist() == [0.0, 1.0, 20.0]
    assert columns["restart_gpu_s"].tolist() == [1.0, 0.0, 0.0]
    assert (columns["preemptions"].tolist(), columns["restarts"].tolist()) == ([0, 2, 1], [1, 0, 3])
    assert "ran_on" not in columns
    assert results(ran_on=few(column=lambda: "types"))._jobs()["ran_on"] == "types"


def test_hours_that_were_paid_for_by_group() -> None:
    found = results()._pools(3600.0 + 4.0)
    assert found == pytest.approx(
        {
            "away_gpu_s": 1.0,
            "node_h[own]": 3604 / 3600,
            "gpu_usd[own]": 36.0 * 3604 / 3600,
            "node_h[spot]": (3600 + 3603) / 3600,
            "gpu_usd[spot]": 72.0 + 18.0 * 3603 / 3600,
        }
    )
    still = results()
    for group in still.world.scenario.cluster.groups:
        group.may_be_away = False
    assert still._pools(3600.0) == {}
    still.world.scenario.faults.spot = few()
    assert len(still._pools(3600.0)) == 5


def accelerator(**peaks: float) -> Any:
    return few(flop_per_s={name: few(value=value) for name, value in peaks.items()})


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_model_work_is_of_what_the_gpus_could_do_on_the_mean(precision: str) -> None:
    """Three GPUs of 8 and one of 4 FLOP/s: 7 on the mean, for ten GPU-seconds."""
    found = results(accelerators=[accelerator(bf16=8.0, fp8=50.0), accelerator(bf16=4.0)])
    found.world.roster.training[1].model = few(flop_per_sample=2.5, tokens=6, precision=precision)
    assert found._model_work() == {"model_flop": 100.0, "peak_flop": 70.0, "tokens": 240.0}
    unknown = results(accelerators=[accelerator(bf16=8.0), accelerator(fp32=4.0)])
    unknown.world.roster.training[1].model = few(flop_per_sample=2.5, tokens=0, precision=precision)
    assert unknown._model_work() == {"model_flop": 0.0, "peak_flop": 0.0, "tokens": 0.0}


def test_carbon_by_a_constant() -> None:
    found = results(timeline=None)
    assert found._carbon(7.2e6) == {}
    found.world.scenario.energy.carbon = 250.0
    assert found._carbon(9e6) == {"carbon_kg": 0.625}
    assert found.timeline() is None


# --- runs ------------------------------------------------------------------------------------------------


def test_a_run_that_failed_comes_back_whole_from_another_process() -> None:
    run = Run("x", "fifo", 3, "", "{}", {}, {"gpus": 4.0})
    for kind in (RunFailed, RunInterrupted):
        back = pickle.loads(pickle.dumps(kind("out of order", run)))
        assert (type(back), str(back), back.run.seed) == (kind, "out of order", 3)


def test_seeds_matter_where_anything_is_drawn() -> None:
    training = {"models": {"m": model()}, "jobs": [{"gpus": 1, "model": "m", "steps": 5, "global_batch": 4}]}
    nodes = [{"name": "n", "count": 2}]
    supply = {"supply": [{"at": 0, "nodes": 1}], "notice": 5}
    assert not is_random(scenario(workload=training))
    assert not is_random(scenario(workload=training, noise={"step_cov": 0.0}))
    drawn: list[dict[str, Any]] = [
        {"workload": training, "noise": {"step_cov": 0.25}},
        {"workload": training, "decide": {"estimate_error": 0.5}},
        {"cluster": {"nodes": [nodes[0] | {"available": supply}]}},
        *(
            {"cluster": {"nodes": nodes}, "faults": {kind: {"mtbf": 50.0, **more}}}
            for kind, more in (("crash", {}), ("fail_slow", {}), ("link", {}), ("rack", {}), ("spot", {"group": "n"}))
        ),
        {"faults": {"corrupt_gradient": {"per_gpu_hour": 1.0}}},
    ]
    assert [k for k, case in enumerate(drawn) if not is_random(scenario(**case))] == []
    planned = [{"kind": "crash", "node": "n-0", "at": 5, "duration": 1}]
    assert not is_random(scenario(cluster={"nodes": nodes}, faults={"events": planned}))
    assert not redraws(scenario(workload=training))
    assert drawn_jobs(scenario(workload=training), 3) is None


def test_runs_are_told_apart_by_all_that_they_depend_on() -> None:
    case, fifo = scenario(), make_policy("fifo")
    first, second = run_identities(case, fifo, (1, 2), None)
    assert first != second
    assert [first] == run_identities(case, fifo, (1,), None)
    inputs = run_inputs(case, fifo, 7, None)
    assert (inputs["seed"], inputs["trace"], inputs["policy"]) == ("7", "none", "fifo")
    assert {len(inputs[name]) for name in ("scenario with its defaults", "hardware profile", "price book")} == {16}
    assert "carbon" not in inputs
    other = run_inputs(scenario(name="other"), fifo, 7, None)
    assert [name for name in inputs if inputs[name] != other[name]] == ["scenario with its defaults"]
    tuned = run_inputs(case, make_policy("easy"), 7, None)
    assert {name for name in inputs if inputs[name] != tuned.get(name)} >= {"policy", "parameters of the stages"}


def test_small_sums() -> None:
    assert [gpus_class(gpus) for gpus in (1, 2, 0)] == ["1 GPU", "2 GPUs", "0 GPUs"]
    assert jain(np.array([1.0, 3.0, NAN])) == 16 / 20
    assert math.isnan(jain(np.zeros(2)))
