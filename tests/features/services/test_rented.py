"""Nodes that are rented for services."""

from equipoise.sim.loading.file import from_mapping
from equipoise.sim.record import Run
from equipoise.sim.run import run


def events(made: Run) -> list[tuple[float, str, str]]:
    columns = made.timeline["events"]
    return list(zip(*(columns[name].tolist() for name in ("time_s", "kind", "subject")), strict=True))


def served(*groups: dict, jobs: int = 1, most: int = 4, **placement: object) -> Run:
    """Two hours of a service with quiet and busy stretches of 20 min, beside a job."""
    service = {
        "name": "chat",
        "batch_latency": {"measured": {1: "25 ms", 8: "60 ms", 32: "180 ms"}},
        "requests": {"rate": "250/s", "kind": "profile", "every": "20 min", "weights": [1, 9]},
        "latency": {"p99": "500 ms"},
        "replicas": {"min": 1, "max": most, "start": "20 s"},
        "autoscaler": {"every": "30 s", "hold": "2 min"},
        "placement": placement,
    }
    data = {
        "schema_version": 1,
        "name": "x",
        "horizon": "2 h",
        "cluster": {"nodes": [{"accelerator": "a100_sxm_40gb", "price": "2 USD/h", **group} for group in groups]},
        "workload": {"jobs": [{"duration": "10 min", "count": jobs}] if jobs else []},
        "services": [service],
    }
    return run(from_mapping(data), timeline=True)


SMALL = {"name": "own", "gpus": 2}
RENTED = {"name": "demand", "count": 3, "gpus": 1, "autoscale": {"delay": "2 min", "idle": "3 min"}}


def test_nodes_are_rented_for_a_service_by_its_load_and_given_back():
    alone, scaled_up = served(SMALL, most=2), served(SMALL, RENTED)
    always = served(SMALL, RENTED | {"autoscale": {"min": 3}})
    windows = scaled_up.tables["service_windows"]
    busy = (windows["start_s"] % 2400.0 >= 1200.0 + 300.0) & (windows["start_s"] % 2400.0 < 2370.0)
    quiet = (windows["start_s"] % 2400.0 >= 300.0) & (windows["start_s"] % 2400.0 < 1200.0)
    assert (windows["replicas"][busy] >= 3).all()
    assert (windows["replicas"][quiet] == 1).all()
    kinds = [kind for _, kind, _ in events(scaled_up)]
    assert kinds.count("rented") >= 5
    assert 0 <= kinds.count("rented") - kinds.count("released") <= 3
    goodput = [made.summary()["service_goodput_ratio"] for made in (alone, scaled_up, always)]
    assert goodput[0] + 0.2 < goodput[1] <= goodput[2] + 1e-9
    cost = [made.totals["gpu_usd"] for made in (alone, scaled_up, always)]
    assert cost[0] < cost[1] < 0.85 * cost[2]


def test_what_is_on_its_way_for_a_service_is_not_counted_for_a_job_too():
    """The busy stretch takes what comes; jobs that arrive then have nodes ordered for themselves."""
    few = served(SMALL, RENTED | {"count": 3}, jobs=3)
    many = served(SMALL, RENTED | {"count": 8}, jobs=3)
    assert many.jobs["completion_s"].max() <= few.jobs["completion_s"].max()
    assert many.jobs["start_s"].max() <= 150.0 + 1e-9
    assert many.summary()["service_goodput_ratio"] >= few.summary()["service_goodput_ratio"] - 1e-9


def test_a_service_that_may_not_use_them_has_no_nodes_rented():
    made = served(SMALL, RENTED, on=["own"], most=2)
    assert events(made) == [] or "rented" not in [kind for at_s, kind, _ in events(made) if at_s > 1200.0]
    assert made.tables["service_windows"]["replicas"].max() == 2
