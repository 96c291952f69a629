"""Replicas of a service beside jobs, by hand: when they come and go, what they hold, and how fast they are.

A replica answers one or two requests in a second, and aims at one a second. 25 requests in the first 10 s are 3.1 a
second with the 6 that then wait: three replicas.
"""

from __future__ import annotations

import math
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from equipoise.sim.features.services.replicas import IDLE_S, ServicesRun, Tenant
from equipoise.sim.features.services.section import services_of
from equipoise.sim.features.services.speeds import allowed_gpus, reference, service_notes, speeds
from equipoise.sim.job.paces import typical_speed
from equipoise.sim.world.stall import Stalled
from equipoise.sim.world.world import SimWorld
from tests.scenarios import scenario
from tests.sim.world.small import PROFILE, to, world_of

FILES = TemporaryDirectory()
BUSY = [0.2 + 0.4 * k for k in range(25)]
CHAT: dict[str, Any] = {
    "name": "chat",
    "batch_latency": {"fixed": 1.0, "most": 2},
    "requests": {"file": "x.csv"},
    "latency": {"p99": 2.5},
    "replicas": {"max": 3, "start": 3.0},
    "autoscaler": {"utilisation": 0.5, "every": 10.0, "hold": 20.0},
    "placement": {"take_back": 5.0},
}


def beside(
    *jobs: dict[str, Any], times: list[float] | None = None, nodes: Any = None, sections: Any = None, **service: Any
) -> SimWorld:
    return world_of(
        *(jobs or ({"gpus": 2, "duration": 1000.0},)),
        nodes=nodes,
        services=[CHAT | service | {"requests": {"file": file_of(BUSY if times is None else times)}}],
        horizon=500.0,
        **(sections or {}),
    )


def file_of(times: list[float]) -> str:
    path = Path(FILES.name) / f"{len(times)} {sum(times)}.csv"
    path.write_text("time_s\n" + "".join(f"{time_s!r}\n" for time_s in times))
    return str(path)


def services(world: SimWorld) -> ServicesRun:
    (found,) = world.runtimes
    assert isinstance(found, ServicesRun)
    return found


def of(world: SimWorld) -> Tenant:
    return services(world).tenants[0]


def held(world: SimWorld) -> int:
    return sum(len(tenant.replicas) for tenant in services(world).tenants)


def ready_s(world: SimWorld) -> list[float]:
    tenant = of(world)
    return [float(tenant.state.queue._done_s[replica.slot]) for replica in tenant.replicas]


def test_replicas_come_on_free_gpus_and_then_on_those_of_jobs_and_go_when_none_were_needed_for_a_while() -> None:
    world = beside()
    to(world, 9.5)
    assert (held(world), of(world).state.wanted, services(world).may_release()) == (1, 1, False)
    to(world, 10.1)
    assert [replica.lane for replica in of(world).replicas] == [0, 1, 2]
    assert [replica.key for replica in of(world).replicas] == [-1, -2, -3]
    assert ready_s(world)[1:] == [13.0, 18.0]
    assert (of(world).taken, world.roster.preemptions.tolist(), world.roster.restarts.tolist()) == (1, [1], [0])
    assert (len(world.roster.waiting), world.cluster.free_gpus) == (1, 1)
    assert (of(world).active, of(world).lack, services(world).short) == (3, 0, False)
    assert (held(world), services(world).may_release()) == (3, True)
    to(world, 39.5)
    assert of(world).active == 3
    to(world, 45.0)
    assert [replica.key for replica in of(world).replicas] == [-1]
    assert not services(world).may_release()
    assert world.roster.running.rows.tolist() == [0]
    assert world.roster.columns["started_s"][0] == 40.0
    services(world).speeds_changing()
    account = of(world).account
    assert account.gpu_s == pytest.approx(45.0 + 2 * 30.0)
    assert account.busy_gpu_s == pytest.approx(13.0)


def test_what_policies_see_of_a_service_is_of_its_last_window() -> None:
    world = beside()
    to(world, 5.0)
    seen = services(world).observed()["services"]
    assert (seen["replicas"].tolist(), seen["wanted"].tolist(), seen["name"].tolist()) == ([1], [1], ["chat"])
    assert np.isnan(seen["goodput_ratio"]).all()
    to(world, 15.0)
    seen = services(world).observed()["services"]
    told = {
        name: seen[name].item()
        for name in (
            "replicas",
            "wanted",
            "replicas_min",
            "replicas_max",
            "gpus_per_replica",
            "gpu_share",
            "latency_target_s",
            "target_ratio",
            "requests_per_s",
            "waiting",
        )
    }
    assert told == {
        "replicas": 3,
        "wanted": 3,
        "replicas_min": 1,
        "replicas_max": 3,
        "gpus_per_replica": 1,
        "gpu_share": 1.0,
        "latency_target_s": 2.5,
        "target_ratio": 0.99,
        "requests_per_s": 2.5,
        "waiting": 6,
    }
    assert seen["goodput_ratio"].item() == pytest.approx(13 / 17)
    assert seen["latency_p99_s"].item() == pytest.approx(3.0, rel=0.005)
    to(world, 35.0)
    assert np.isnan(services(world).observed()["services"]["goodput_ratio"]).all()
    assert services(world).observed()["services"]["requests_per_s"].item() == 0.0


def test_the_busy_share_of_gpus_is_that_since_it_was_last_asked_for() -> None:
    world = beside()
    to(world, 5.7)
    busy = np.full(4, 0.25)
    services(world).add_utilisation(busy, 5.7)
    assert busy.tolist() == pytest.approx([0.25 + 5.5 / 5.7, 0.25, 0.25, 0.25])
    to(world, 8.2)
    again = np.zeros(4)
    services(world).add_utilisation(again, 8.2)
    services(world).add_utilisation(again, 8.2)
    assert again.tolist() == pytest.approx([1.0, 0, 0, 0])
    to(world, 30.0 - 1e-3)
    services(world).add_utilisation(again, world.clock.now)
    assert again[0] == pytest.approx(1.0 + 5.0 / (21.8 - 1e-3))


def test_a_service_that_may_not_preempt_has_its_replicas_when_a_job_ends() -> None:
    world = beside({"gpus": 3, "duration": 17.0}, placement={"preempt": False})
    to(world, 10.5)
    assert (of(world).active, of(world).lack, services(world).short, of(world).taken) == (1, 2, True, 0)
    to(world, 17.5)
    assert (of(world).active, of(world).lack, services(world).short) == (3, 0, False)
    assert ready_s(world)[1:] == [20.0, 20.0]
    assert [replica.since_s for replica in of(world).replicas] == [0.0, 17.0, 17.0]


def test_a_replica_that_goes_ends_its_batch_first() -> None:
    """Three requests shortly before 20 s keep all three busy until 20.5, 20.6 and 20.7 s."""
    calm = CHAT["autoscaler"] | {"hold": 0.0}
    world = beside(times=[*BUSY, 19.5, 19.6, 19.7], autoscaler=calm)
    to(world, 20.3)
    assert [replica.leaving for replica in of(world).replicas] == [False, True, True]
    assert (of(world).active, held(world), len(world.roster.waiting)) == (1, 3, 1)
    to(world, 20.65)
    assert [replica.key for replica in of(world).replicas] == [-1, -3]
    assert world.roster.columns["started_s"][0] == pytest.approx(20.6)
    to(world, 20.8)
    assert [replica.key for replica in of(world).replicas] == [-1]
    services(world).speeds_changing()
    assert of(world).account.gpu_s == pytest.approx(20.8 + 10.6 + 10.7)
    assert of(world).state.queue.take().served == 3


def test_a_service_of_its_own_has_all_its_replicas_from_the_beginning() -> None:
    world = beside(placement={"kind": "own"}, replicas={"min": 1, "max": 2, "start": 3.0})
    to(world, 0.1)
    assert (of(world).active, of(world).state.wanted, services(world).may_release()) == (2, 2, False)
    assert [replica.lane for replica in of(world).replicas] == [0, 1]


def test_a_lost_replica_is_made_up_for_once_that_is_noticed() -> None:
    faults = {"events": [{"kind": "crash", "node": "n-0", "at": 12.0, "duration": 9.0}]}
    restart = {"initialisation": 0, "detection": 4.0, "checkpoint_write": 0}
    world = beside(
        {"gpus": 1, "duration": 5.0},
        times=[11.5],
        nodes=[{"name": "n", "count": 2, "gpus": 1}],
        sections={"faults": faults, "restart": restart},
    )
    to(world, 11.8)
    assert [replica.node for replica in of(world).replicas] == [0]
    to(world, 12.2)
    assert [replica.node for replica in of(world).replicas] == [1]
    assert ready_s(world) == [12.0 + 4.0 + 3.0]
    assert (of(world).state.queue.waiting, of(world).replicas[0].lane, of(world).replicas[0].slot) == (1, 0, 0)
    to(world, 19.5)
    services(world).speeds_changing()
    assert of(world).state.queue.waiting == 0
    assert of(world).account.gpu_s == pytest.approx(19.5)
    assert of(world).account.busy_gpu_s == pytest.approx(0.5 + 0.5)


def test_before_its_first_job_a_service_does_not_begin() -> None:
    world = beside({"gpus": 1, "duration": 5.0, "arrival": 7.0})
    to(world, 6.0)
    services(world).node_up(0, 6.0)
    assert held(world) == 0
    to(world, 7.1)
    assert (held(world), ready_s(world)) == (1, [7.0])
    assert world_of({"gpus": 1, "duration": 5.0}).runtimes == ()


def factor_of(world: SimWorld) -> float:
    return services(world)._factor_of(of(world), of(world).replicas[0])


def test_a_batch_takes_as_much_longer_as_the_slowest_gpu_of_the_replica() -> None:
    nodes = [{"name": "n", "gpus": 4, "speed": 0.5}]
    world = beside(nodes=nodes, replicas={"gpus": 2, "max": 1})
    to(world, 0.1)
    assert factor_of(world) == 2.0
    gpus = of(world).replicas[0].holding.gpu
    world.cluster.gpu_time[gpus] = 1.25, 1.6
    world.cluster.slow[0] = 4.0
    assert factor_of(world) == pytest.approx(1.6 * 4.0 / 0.5)
    world.cluster.gpu_time[gpus] = 2.0, 1.6
    assert services(world)._factor(of(world)) == pytest.approx(2.0 * 4.0 / 0.5)
    services(world).speeds_changed()
    assert of(world).state.queue._factor[of(world).replicas[0].slot] == pytest.approx(16.0)


def test_a_part_of_a_gpu_is_slower_and_neighbours_disturb() -> None:
    """Half of a GPU at kappa 1 has the speed 2/3; beside half a GPU it takes 1 + 0.4 x 0.5 as long."""
    world = beside(
        {"gpus": 1, "duration": 50.0, "arrival": 2.0},
        nodes=[{"name": "n", "gpus": 1}, {"name": "m", "gpus": 1}],
        placement={"kind": "shared", "share": 0.5},
        share_kappa=1.0,
        interference=0.4,
        replicas={"max": 1},
    )
    to(world, 2.1)
    assert factor_of(world) == pytest.approx(1.5)
    queue, gpu = of(world).state.queue, of(world).replicas[0].holding.gpu
    world.cluster.book(77, gpu, np.array([0.5]))
    services(world).shares_changed(1 - gpu)
    assert queue._factor[0] == pytest.approx(1.5)
    services(world).shares_changed(gpu)
    assert queue._factor[0] == pytest.approx(1.5 * 1.2)
    assert of(world).account.gpu_s == pytest.approx(0.5 * 0.1)


GROUPS = [
    {"name": "a", "count": 2, "gpus": 1, "accelerator": "a100_sxm_40gb"},
    {"name": "t", "count": 1, "gpus": 2, "accelerator": "t4"},
    {"name": "h", "count": 1, "gpus": 3, "accelerator": "h100_sxm"},
]


def on(*names: str, of: str | None = None, groups: Any = None) -> tuple[Any, Any, Any]:
    batch = CHAT["batch_latency"] | ({} if of is None else {"of": of})
    service = CHAT | {"placement": {"on": list(names)}, "batch_latency": batch}
    world = world_of({"gpus": 1, "duration": 5.0}, nodes=groups or GROUPS)
    case = scenario(cluster={"nodes": groups or GROUPS}, services=[service])
    return services_of(case)[0], case, world.cluster


def test_a_service_may_use_the_groups_and_accelerators_that_it_names() -> None:
    for names, rows in (((), [1] * 7), (("t",), [0, 0, 1, 1, 0, 0, 0]), (("h100_sxm", "a"), [1, 1, 0, 0, 1, 1, 1])):
        spec, _, cluster = on(*names)
        assert allowed_gpus(spec, cluster).astype(int).tolist() == rows


def test_times_are_of_the_first_accelerator_that_a_service_may_have_unless_it_says() -> None:
    for names, given, expected in (((), None, "a100_sxm_40gb"), (("h", "t"), None, "t4"), (("t",), "b200", "b200")):
        spec, _, cluster = on(*names, of=given)
        assert reference(spec, cluster) == expected


def test_speeds_on_other_accelerators_are_those_of_data_sheets_and_a_note_says_so() -> None:
    spec, case, cluster = on("t", "h")
    ratios = [
        typical_speed(PROFILE.accelerator(name), PROFILE.accelerator("t4"))
        for name in ("a100_sxm_40gb", "t4", "h100_sxm")
    ]
    assert speeds(spec, case, cluster).tolist() == ratios
    assert ratios[1] == 1.0
    assert list(service_notes(case, cluster)) == [
        "service chat: its times are of t4; speeds on other GPUs are estimated from data sheets "
        f"(h100_sxm {ratios[2]:.2f}): give a speed of each node group, or placement.on"
    ]
    stated = [GROUPS[0], GROUPS[1] | {"speed": 0.5}]
    spec, case, cluster = on(groups=stated)
    assert speeds(spec, case, cluster).tolist() == [1.0, 1.0]
    assert list(service_notes(case, cluster)) == []
    spec, case, cluster = on("t")
    assert list(service_notes(case, cluster)) == []


def test_jobs_that_none_has_run_beside_services_for_a_month_wait_for_ever() -> None:
    world = beside({"gpus": 1, "duration": 9.0}, {"gpus": 1, "duration": 9.0})
    runtime, clock = services(world), SimpleNamespace(_now=7.0)
    runtime.clock = clock  # type: ignore[assignment]
    runtime._check_not_stalled()
    clock._now += 2 * IDLE_S
    world.roster.waiting.add(1)
    world.roster.waiting.add(0)
    runtime._check_not_stalled()
    clock._now += IDLE_S
    runtime._check_not_stalled()
    clock._now += 1.0
    with pytest.raises(
        Stalled, match=r"job j0 and 1 more wait and no job has run for 30 days: the services leave too few"
    ):
        runtime._check_not_stalled()
    world.roster.running.add(1)
    runtime._check_not_stalled()
    assert runtime._idle_since_s == math.inf
    assert IDLE_S == 2_592_000.0


def test_only_the_replicas_of_a_lost_node_are_gone() -> None:
    for node in (0, 1, 2):
        world = beside(
            {"gpus": 1, "duration": 5.0},
            nodes=[{"name": "n", "count": 4, "gpus": 1}],
            placement={"kind": "own", "preempt": False},
            replicas={"max": 3},
        )
        to(world, 2.0)
        assert [replica.node for replica in of(world).replicas] == [0, 1, 2]
        services(world).node_leaving(node)
        assert [replica.node for replica in of(world).replicas] == [k for k in (0, 1, 2) if k != node]
        assert (of(world).active, of(world).lack) == (2, 1)
