"""Random faults come after the time between them and last as long as the scenario says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.sim.loading.file import from_mapping
from equipoise.sim.scenario.tree import InputError
from tests.scenarios import model, scenario, simulate

SPAN_S, MTBF_S, LENGTH_S = 20_000.0, 100.0, 20.0
KINDS: dict[str, tuple[dict[str, Any], str, str]] = {
    "crash": ({"mtbf": MTBF_S, "repair": LENGTH_S}, "crash", "repair"),
    "rack": ({"mtbf": MTBF_S, "repair": LENGTH_S}, "crash", "repair"),
    "fail_slow": ({"mtbf": MTBF_S, "duration": LENGTH_S}, "fail_slow", "fail_slow_end"),
    "link": ({"mtbf": MTBF_S, "duration": LENGTH_S}, "link_degraded", "link_restored"),
    "spot": ({"group": "n", "mtbf": MTBF_S, "notice": 0.0, "away": LENGTH_S}, "reclaim", "repair"),
    "corrupt_gradient": (
        {"per_gpu_hour": 3600.0 / MTBF_S, "duration": LENGTH_S},
        "corrupt_gradient",
        "corrupt_gradient_end",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_faults_come_and_go_in_their_time(kind: str) -> None:
    """About 167 of them, one after another, on a node that nobody uses: a mean is off by some 8 %."""
    spec, begins, ends = KINDS[kind]
    nodes = [{"name": "used", "count": 1}, {"name": "n", "count": 1}]
    cluster = {"nodes": nodes, "topology": {"kind": "tree", "nodes_per_rack": 1}}
    job = {"gpus": 1, "duration": SPAN_S, "checkpoint": {"interval": 5.0, "size": 0.0}}
    case = scenario(
        cluster=cluster,
        workload={"jobs": [job]},
        faults={kind: spec},
        horizon=SPAN_S,
        restart={"detection": 0.0, "initialisation": 0.0},
    )
    made = simulate(case, timeline=True)
    assert made.timeline is not None
    events = made.timeline["events"]
    of_node = np.array([str(subject).startswith("n-0") for subject in events["subject"]])
    begun = events["time_s"][of_node & (events["kind"] == begins)]
    ended = events["time_s"][of_node & (events["kind"] == ends)]
    count = min(begun.size, ended.size)
    assert 110 < count < 230
    gaps_s = begun[1:count] - ended[: count - 1]
    assert (gaps_s > 0.0).all()
    assert begun[0] > 0.0
    assert gaps_s.mean() == pytest.approx(MTBF_S, rel=0.3)
    assert (ended[:count] - begun[:count]).mean() == pytest.approx(LENGTH_S, rel=0.3)


GRADIENTS: dict[str, Any] = {"gradient": 1e8, "exchange": {"alpha": 0.0}}
TENSORS: dict[str, Any] = {"parallel": {"tensor": 2, "tensor_bytes_per_sample": 5e7}}


@pytest.mark.parametrize("traffic", [GRADIENTS, TENSORS, GRADIENTS | {"exchange": {"alpha": 0.0, "algorithm": "tree"}}])
@pytest.mark.parametrize("nics", [1, 4])
@pytest.mark.parametrize("factor", [0.5, 0.25])
def test_a_planned_fault_of_a_link_slows_what_crosses_it_as_long_as_it_lasts(
    factor: float, nics: int, traffic: dict[str, Any]
) -> None:
    """In four seconds at a part of its rate a link carries that part of what it else would.

    A step sends 1e8 bytes through the one NIC of 1e9 bytes/s that the GPU of each node drives: 0.1 s.
    """
    model = {"sample_time": 1e-6, **traffic}
    job = {"gpus": 2, "model": "m", "steps": 100, "global_batch": 2, "checkpoint": {"interval": "never"}}
    took_s = []
    for events in ([], [{"kind": "link", "node": "n-0", "at": 2.0, "duration": 4.0, "factor": factor}]):
        case = scenario(
            cluster={"nodes": [{"name": "n", "count": 2, "gpus": 1, "nic": 1e9, "nics": nics, "fabric": 1e12}]},
            workload={"models": {"m": model}, "jobs": [job]},
            faults={"events": events},
            noise={},
        )
        took_s.append(simulate(case).totals["makespan_s"])
    assert took_s[1] - took_s[0] == pytest.approx(4.0 * (1.0 - factor), abs=0.11)


@pytest.mark.parametrize(
    ("kind", "factor", "message"),
    [
        ("link", 4.0, r"factor: 4 is not allowed; remaining share of the rate, below 1; 4 times slower is 0.25"),
        ("link", 1.0, r"below 1$"),
        ("crash", 2.0, r"factor: a crash has none"),
    ],
)
def test_a_factor_that_makes_nothing_slower_is_refused(kind: str, factor: float, message: str) -> None:
    """A share of 0.0625 was taken as 16 times faster, and did nothing."""
    event = {"kind": kind, "node": "n-0", "at": 1.0, "duration": 1.0, "factor": factor}
    case = {"schema_version": 1, "name": "t", "cluster": {"nodes": [{"name": "n"}]}}
    case |= {"workload": {"jobs": [{"duration": 9.0}]}, "faults": {"events": [event]}}
    with pytest.raises(InputError, match=message):
        from_mapping(case)


SHAPE, SPREAD = 0.5, 0.75


def derived(**changes: Any) -> str:
    """The note on the interval of a job with two replicas of two nodes each, which write 1 GB/s a node."""
    sections = {
        "cluster": {
            "nodes": [{"name": "n", "count": 4, "storage_rate": 1e9}],
            "topology": {"kind": "tree", "nodes_per_rack": 2},
        },
        "workload": {
            "models": {"m": model(parallel={"pipeline": 2})},
            "jobs": [
                {
                    "gpus": 4,
                    "model": "m",
                    "steps": 5,
                    "global_batch": 8,
                    "name": "j",
                    "checkpoint": {"interval": "young-daly", "size": 2e10},
                }
            ],
        },
        "horizon": 1.0,
    }
    made = simulate(scenario(**(sections | changes)))
    return next((note for note in made.notes if "young-daly" in note), "")


def test_young_and_daly_count_every_node_of_every_replica_and_what_it_is_lost_by() -> None:
    """Four nodes write 20 GB in C = 5 s, and lose one every 360 / 4 s by crashes, by reclaims, or by 0.1 GPU-hours
    of each one's GPU. Two racks that fail every 180 s are two causes, not four: sqrt(2 x 5 s x 90 s) = 30 s.
    """
    told = "every 30 s, by young-daly sqrt(2 C M) from C 5 s to write it and M 90 s between failures of its 4 nodes"
    for causes in (
        {"crash": {"mtbf": 360.0}},
        {"rack": {"mtbf": 180.0}},
        {"crash": {"gpu_hours": 0.1}},
        {"spot": {"group": "n", "mtbf": 360.0}},
        {"crash": {"mtbf": 720.0}, "rack": {"mtbf": 360.0}},
    ):
        assert derived(faults=causes).endswith(told)
    assert derived() == ""


def test_a_slow_node_anywhere_in_a_replica_slows_all_of_it() -> None:
    """Ten steps of 8 samples at 0.01 s: 0.8 s; twice that while the second of its two nodes is half as fast."""
    case = {
        "cluster": {"nodes": [{"name": "n", "count": 2}]},
        "workload": {
            "models": {"m": model(parallel={"tensor": 2})},
            "jobs": [{"gpus": 2, "model": "m", "steps": 10, "global_batch": 8}],
        },
    }
    slow = [{"kind": "slow", "node": "n-1", "at": 0.0, "duration": 99.0, "factor": 2.0}]
    took = [simulate(scenario(**case, faults={"events": e})).jobs["completion_s"][0] for e in ([], slow)]
    assert took[1] == pytest.approx(2 * took[0])


FAULTS = st.fixed_dictionaries(
    {},
    optional={
        "crash": st.sampled_from([{"mtbf": 90.0, "repair": 20.0}, {"gpu_hours": 0.1, "repair": 9.0, "shape": 0.7}]),
        "rack": st.just({"mtbf": 200.0, "repair": 30.0}),
        "fail_slow": st.just({"mtbf": 100.0, "duration": 30.0}),
        "link": st.just({"mtbf": 100.0, "duration": 30.0}),
        "spot": st.just({"group": "g0", "mtbf": 90.0, "notice": 0.0, "away": 30.0}),
        "corrupt_gradient": st.just({"per_gpu_hour": 60.0, "duration": 9.0}),
    },
)


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=3),
    FAULTS,
    st.booleans(),
    st.integers(0, 3),
)
def test_a_group_in_front_changes_nobody_elses_faults(
    sizes: list[tuple[int, int]], faults: dict[str, Any], supplied: bool, seed: int
) -> None:
    groups: list[dict[str, Any]] = [{"name": f"g{k}", "count": n, "gpus": g} for k, (n, g) in enumerate(sizes)]
    if supplied and "spot" not in faults:
        supply = [{"at": 0, "nodes": sizes[0][0]}, {"at": 99, "nodes": 0}, {"at": 200, "nodes": 9}]
        groups[0]["available"] = {"supply": supply}

    def happened(*front: dict[str, Any]) -> list[str]:
        case = scenario(
            cluster={"nodes": [*front, *groups], "topology": {"kind": "tree", "nodes_per_rack": 2}},
            workload={"jobs": [{"gpus": 1, "duration": 1e6}]},
            faults=faults,
            horizon=300.0,
            decide={"estimate_error": 0.5},
            noise={"gpu_cov": 0.1},
        )
        made = simulate(case, seed=seed, timeline=True)
        assert made.timeline is not None
        events = made.timeline["events"]
        rows = zip(*(events[key].tolist() for key in ("time_s", "subject", "kind", "value")), strict=True)
        mine = (repr(row) for row in rows if row[1].startswith("g"))
        return sorted(row.replace("reclaim", "crash") for row in mine)  # by whether a job there can save

    new = {"name": "new", "count": 2, "gpus": 4}
    assert happened(new) == happened()
