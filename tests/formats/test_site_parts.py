"""Single values of a site's files on their way into a scenario."""

from __future__ import annotations

import math

import pytest

from equipoise.formats.kueue.generator import GeneratedLevel
from equipoise.formats.kueue.objects import KueueQuota
from equipoise.sim.loading.site import queues
from equipoise.sim.loading.site.cluster import Site, accelerator_of


def test_times_numbers_and_amounts_as_a_scenario_says_them() -> None:
    times = (None, math.inf, 0.0, -1.0, 90.0, 86_400.0, 172_800.0, 86_401.0)
    assert [queues._time(at) for at in times] == [None, None, None, None, "90 s", "1 d", "2 d", "86401 s"]
    assert [queues._plain(number) for number in (None, 2.0, 2.5)] == [None, 2, 2.5]
    assert isinstance(queues._plain(2.0), int)
    amounts = [("cpu", "9"), ("cpu", "x"), ("node", "3"), ("mem", "1536"), ("mem", "2G"), ("mem", "0"), ("mem", "z")]
    assert [queues._amount(*each) for each in amounts] == [9, None, 3, "1536 MiB", "2048 MiB", None, None]
    assert [queues.counts("nvidia.com/gpu", unit) for unit in ("GPUs", "CPUs")] == [True, False]
    assert [queues.counts("cpu", unit) for unit in ("GPUs", "CPUs")] == [False, True]


def test_limits_by_what_they_count() -> None:
    site = Site()
    limits = {
        "GrpTRES": {"gres/gpu": "8", "gres/gpu:a100": "4", "mem": "1G", "bb/x": "3"},
        "MaxTRESPU": {"gres/gpu": "3", "gres/gpu:a100": "2"},
        "Other": {"cpu": "1"},
    }
    found = queues._limits(site, "QOS q", limits, {"MaxJobsPU": 5, "Odd": 6}, "GPUs", queues._AMOUNTS, queues._COUNTS)
    assert found == {
        "gpus": 8,
        "gpus_of_type": {accelerator_of("a100")[0]: 4},
        "tres": {"mem": "1024 MiB"},
        "gpus_per_user": 3,
        "jobs_per_user": 5,
    }
    (line,) = site.aside["Limits without a counterpart in the scenario"]
    assert line == "QOS q: GrpTRES bb/x=3, MaxTRESPU gres/gpu:a100=2, Other cpu=1, Odd 6"
    cores = queues._limits(Site(), "", {"GrpTRES": {"cpu": "9", "gres/gpu": "8"}}, {}, "CPUs", queues._AMOUNTS, {})
    assert cores == {"gpus": 9}


def test_quotas_of_one_flavor_are_numbers_and_of_several_by_name() -> None:
    def quota(flavor: str, nominal: float, borrow: float | None = None) -> KueueQuota:
        return KueueQuota(flavor, "nvidia.com/gpu", nominal, borrow, None)

    one = queues._quotas([quota("a", 2.0, 1.0), quota("b", 3.0)], "GPUs", {"a": "a+b", "b": "a+b"})
    assert one == {"gpus": 5, "borrow": 1, "lend": {}}
    two = queues._quotas([quota("a", 2.0, 1.0), quota("b", 3.5), quota("c", 1.0)], "GPUs", {"a": "a", "b": "b"})
    assert two == {"gpus": {"a": 2, "b": 3.5, "c": 1}, "borrow": {"a": 1}, "lend": {}}
    assert queues._quotas([quota("a", 2.0)], "CPUs", {"a": "a"}) == {"gpus": {}, "borrow": {}, "lend": {}}


def test_entries_are_told_once_and_by_name() -> None:
    site = Site()
    for section, entry in (
        ("qos", {"name": "a", "priority": 3, "qos": None, "names": [], "empty": ""}),
        ("qos", {"name": "a", "priority": 4}),
        ("qos", {"priority": 4}),
        ("users", {"name": "u", "account": "x"}),
        ("users", {"name": "u", "account": "y"}),
        ("users", {"name": "u"}),
    ):
        queues.tell(site, section, entry)
    assert site.queues == {
        "qos": [{"name": "a", "priority": 3}],
        "users": [{"name": "u", "account": "x"}, {"name": "u", "account": "y"}],
    }
    assert site.aside == {
        "Given twice, perhaps for several clusters: the first applies": ["qos a"],
        "Without a name or an account": ["one of qos", "one of users"],
    }


def test_generated_nodes_stand_in_equal_racks() -> None:
    levels = [GeneratedLevel(label="block", count=2, cpus=0.0), GeneratedLevel(label="rack", count=3, cpus=0.0)]
    levels.append(GeneratedLevel(label="host", count=4, cpus=96.0))
    site = Site()
    queues._add_generated_nodes(site, levels)
    (nodes,) = site.nodes
    assert (len(nodes.names), nodes.gpus, nodes.names[23]) == (24, 96, "node-000023")
    assert [len(switch.nodes) for switch in site.switches] == [4] * 6
    assert site.switches[5].nodes == nodes.names[20:]


@pytest.mark.parametrize(
    ("topology", "level", "together"),
    [
        ("required", "host", "node-required"),
        ("preferred", "rack", "rack-preferred"),
        ("required", "block", None),
        ("", "host", None),
    ],
)
def test_places_that_generated_jobs_ask_for(topology: str, level: str, together: str | None) -> None:
    levels = [GeneratedLevel(label=name, count=1, cpus=1.0) for name in ("block", "rack", "host")]
    work = type("Work", (), {"topology": topology, "level": level})()
    assert queues._together(work, levels) == ({} if together is None else {"together": together})
