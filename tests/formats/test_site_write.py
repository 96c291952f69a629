"""What a site's cluster reads like as a scenario, line by line."""

from __future__ import annotations

import yaml

from equipoise.formats.slurm.hardware import Gres, SlurmTopology
from equipoise.formats.slurm.hardware import Switch as SlurmSwitch
from equipoise.formats.slurm.nodes import NodeRow
from equipoise.sim.loading.site.cluster import Site, SiteNodes, SiteSwitch
from equipoise.sim.loading.site.slurm import add_gres, add_nodes, add_topology
from equipoise.sim.loading.site.write import _gpu_types, _labels, _topology, scenario_text


def test_a_small_cluster_reads_line_by_line() -> None:
    site = Site(
        name=" My lab! ",
        nodes=[
            SiteNodes(("gn07", "gn08"), 4, "h100_sxm", 48, 3 * 2**30, 25e9, 300e9),
            SiteNodes((), 2, "P100", count=5, label="old_"),
            SiteNodes(("x1",), 3, "", remark="said"),
        ],
        extra={"more": {"seed": 7}, "scheduler": {"writes_per_s": 20}},
    )
    assert scenario_text(site, ["a.conf", "b"], {"file": "t.csv", "count": "cpus"}) == (
        "# Written by `equipoise import` from a.conf, b.\nschema_version: 1\nname: My-lab\ncluster:\n  nodes:\n"
        "    # gn07 to gn08 (2 nodes)\n    - name: gn\n      count: 2\n      gpus: 4\n      accelerator: h100_sxm\n"
        "      cores: 48\n      host_memory: 3072 MiB\n      nic: 200 Gbit/s\n      fabric: 300 GB/s\n"
        "    # (5 nodes); P100 is not in the hardware profile: generic\n    - name: old\n      count: 5\n"
        "      gpus: 2\n      accelerator: generic\n      nic: 100 Gbit/s  # assumed\n"
        "    # x1 (1 nodes); said\n    - name: x\n      count: 1\n      gpus: 3\n      accelerator: generic\n"
        "      nic: 100 Gbit/s  # assumed\n"
        "  topology: {kind: star}  # one switch: the files give no topology\n"
        "workload:\n  trace:\n    file: t.csv\n    count: cpus\n"
        "policy: [easy]  # assumed: the files name no scheduler\n"
        "queues:\n  gpu_types: {h100_sxm: [gn], p100: [old]}\n"
        "  too_large: leave-out  # jobs that can never start under a limit are counted, not run\n"
        "more: {seed: 7}\nscheduler: {writes_per_s: 20}"
        "  # assumed: the default write limits of Kueue's client (clientConnection.qps and burst)\n"
    )


def test_a_scenario_without_jobs_says_how_to_name_them_and_jobs_of_its_own_come_first() -> None:
    site = Site(nodes=[SiteNodes(("a1",), 2)], switches=[SiteSwitch("s", ("a1",))])
    text = scenario_text(site, ["f"], {})
    assert "  topology: {kind: star}  # one switch\nworkload: {}  # no jobs: name them with --trace FILE\n" in text
    site.jobs = [{"name": "j", "gpus": 3}, {"name": "12", "gpus": 4}]
    text = scenario_text(site, ["f"], {"file": "t.csv"})
    assert "\nworkload:\n  jobs:\n    - {name: j, gpus: 3}\n    - {name: '12', gpus: 4}\npolicy:" in text


def test_groups_are_named_by_what_their_nodes_names_begin_with() -> None:
    groups = [
        SiteNodes(("gn-01", "z2"), 2),
        SiteNodes(("gn_5",), 2),
        SiteNodes(("gn007",), 2),
        SiteNodes((), 2, count=3),
        SiteNodes(("12",), 2),
        SiteNodes(("a",), 2, label="b c."),
    ]
    assert _labels(groups) == ["gn", "gn2", "gn3", "node", "site", "b-c"]


def test_types_of_gpus_are_told_where_there_are_several() -> None:
    def told(*kinds: str) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
        site = Site(nodes=[SiteNodes((f"n{k}",), 2, kind) for k, kind in enumerate(kinds)])
        return _gpu_types(site, [f"g{k}" for k in range(len(kinds))]), site.aside

    assert told("A100", "a100", "") == ({}, {})
    assert told("A100", "T4") == ({"a100": ["g0"], "t4": ["g1"]}, {})
    heading = "GPU types taken as one accelerator: a job that requests one may use the others"
    words, aside = told("a100", "a100x,T4", "A100X")
    assert words == {"a100": ["g0"], "a100x": ["g1", "g2"], "t4": ["g1"]}
    assert aside == {heading: ["a100, a100x, t4: a100_sxm_80gb"]}


def test_partitions_hold_groups_and_those_without_nodes_are_told() -> None:
    site = Site(nodes=[SiteNodes(("a1", "a2", "b1"), 2), SiteNodes((), 3, count=4, label="rest")])
    site.queues = {
        "partitions": [
            {"name": "p", "nodes": frozenset({"a1", "a2"}), "qos": "q"},
            {"name": "all", "qos": "known"},
            {"name": "none", "nodes": frozenset({"z"})},
            {"name": "both", "nodes": frozenset({"b1", "a1", "a2"})},
        ],
        "qos": [{"name": "known", "gpus": 3}],
        "users": [],
        "preempt": "qos",
        "flavors": {"f": ["h100_sxm"], "g": ["generic"]},
    }
    text = scenario_text(site, ["f"], {})
    assert yaml.safe_load(text)["queues"] == {
        "partitions": [
            {"name": "p", "qos": "q", "nodes": ["a"]},
            {"name": "all", "qos": "known"},
            {"name": "both", "nodes": ["a", "b"]},
        ],
        "qos": [{"name": "known", "gpus": 3}, {"name": "q"}],
        "preempt": "qos",
        "flavors": {"g": ["generic"]},
        "too_large": "leave-out",
    }
    assert "\nqueues:\n  partitions:\n    - {name: p, qos: q, nodes: [a]}\n" in text
    assert site.aside == {
        "Partitions without nodes of the scenario": ["none"],
        "Flavors of GPUs that no node has, taken as any GPU": ["f"],
        "QOS of partitions, taken without limits (`sacctmgr show qos -P` lists them)": ["q"],
    }
    assert "queues:" not in scenario_text(Site(nodes=[SiteNodes(("a",), 2)]), ["f"], {})


def test_equal_racks_in_order_are_a_tree_and_others_are_links() -> None:
    nodes = [SiteNodes(("a1", "a2", "a3", "a4"), 2)]

    def kind(*switches: SiteSwitch) -> str:
        return _topology(Site(nodes=nodes, switches=list(switches)), ["a"])[0]

    tree = "  topology: {kind: tree, nodes_per_rack: 2}  # assumed: uplinks as fast as the links below"
    one, two = SiteSwitch("r1", ("a1", "a2")), SiteSwitch("r2", ("a3", "a4"))
    assert kind(one, two) == tree
    assert kind(one, two, SiteSwitch("top", (), ("r1", "r2"))) == tree
    assert kind(one, two, SiteSwitch("gone", ("z",)), SiteSwitch("over", (), ("gone",))) == tree
    links = "  topology:"
    assert kind(one, two, SiteSwitch("t1", (), ("r1",)), SiteSwitch("t2", (), ("r2",))) == links
    assert kind(two, one) == links
    assert kind(one, SiteSwitch("r2", ("a3", "a4"), uplink_bytes_per_s=3e9)) == links
    assert kind(SiteSwitch("r1", ("a1", "a2", "a3")), SiteSwitch("r2", ("a4",))) == links
    assert kind(one, SiteSwitch("r2", ("a3", "a4"), ("r1",))) == links
    assert kind(one, SiteSwitch("r2", ("a3",))) == links
    each = [SiteSwitch(f"r{k}", (f"a{k}",)) for k in (1, 2, 3, 4)]
    assert kind(*each, SiteSwitch("t1", (), ("r1", "r2"))) == tree.replace("2", "1")
    assert kind(*each, SiteSwitch("t1", (), ("r1", "r2")), SiteSwitch("t2", (), ("r3", "r4"))) == links
    star = "  topology: {kind: star}  # one switch"
    assert kind(SiteSwitch("r1", ("a1", "a2", "a3", "a4")), SiteSwitch("top", (), ("r1",))) == star
    assert kind() == star + ": the files give no topology"


def test_links_carry_what_is_below_them_or_what_was_told() -> None:
    site = Site(
        nodes=[
            SiteNodes(("a1", "a2"), 2, nic_bytes_per_s=3e9),
            SiteNodes(("b1",), 2),
            SiteNodes(("c1", "c2"), 2, nic_bytes_per_s=5e9),
        ],
        switches=[
            SiteSwitch("b", ("a1", "b1")),
            SiteSwitch("r 2", ("a2", "z"), uplink_bytes_per_s=2e9),
            SiteSwitch("up", ("c1",), ("b", "gone")),
        ],
    )
    assert _topology(site, ["a", "b", "c"]) == [
        "  topology:",
        "    kind: explicit",
        "    links:",
        "      - {source: a-0, target: sw-b, rate: 24 Gbit/s}  # a1",
        "      - {source: b-0, target: sw-b, rate: 100 Gbit/s}  # b1",
        "      - {source: a-1, target: r-2, rate: 24 Gbit/s}  # a2",
        "      - {source: c-0, target: up, rate: 40 Gbit/s}  # c1",
        "      - {source: c-1, target: unlisted, rate: 40 Gbit/s}  # c2",
        "      - {source: sw-b, target: up, rate: 124 Gbit/s}  # assumed: as fast as the links below it",
        "      - {source: r-2, target: core, rate: 16 Gbit/s}  # as told",
        "      - {source: up, target: core, rate: 164 Gbit/s}  # assumed: as fast as the links below it",
        "      - {source: unlisted, target: core, rate: 40 Gbit/s}  # assumed: as fast as the links below it",
    ]
    site.switches.append(SiteSwitch("top", ("c2",), ("up", "r 2")))
    links = _topology(site, ["a", "b", "c"])
    assert [line.split(",")[1] for line in links[8:]] == [" target: up", " target: top", " target: top"]


def gres(name: str, count: int, *nodes: str, kind: str = "", **other: str) -> Gres:
    return Gres(nodes, name, kind, count, other, 1)


def test_gpus_of_gres_conf_add_up_and_those_of_slurm_conf_hold() -> None:
    site = Site(
        nodes=[
            SiteNodes(("a", "b"), 0),
            SiteNodes(("c",), 3, "t4"),
            SiteNodes(("d",), 5),
            SiteNodes((), 7, count=2),
            SiteNodes(("e",), 0),
        ]
    )
    add_gres(
        site,
        [
            gres("gpu", 2, "a", kind="v100", cores="0-3", links="1"),
            gres("gpu", 3, "a", kind="a10"),
            gres("npu", 6, "b"),
            gres("gpu", 9, "c", kind="a10"),
            gres("gpu", 5, "d"),
            gres("bw", 8),
            gres("bw", 8, "a", "b"),
            gres("gpu", 1),
            gres("gpu", 3, kind="l40s"),
        ],
    )
    told = [(group.names, group.count, group.gpus, group.gpu_type) for group in site.nodes]
    assert told == [
        (("a",), 1, 5, "v100"),
        (("b",), 1, 6, "npu"),
        (("c",), 1, 3, "t4"),
        (("d",), 1, 5, ""),
        ((), 2, 7, ""),
        (("e",), 1, 4, "l40s"),
    ]
    assert site.aside == {
        "More on gres.conf": ["a: cores 0-3, links 1"],
        "Other generic resources": ["bw of all nodes: 8", "bw of 2 nodes: 8"],
        "Contradictions": ["c ...: 3 GPUs in slurm.conf, 9 in gres.conf: the first applies"],
    }


def test_switches_of_the_default_topology_hold_the_nodes_that_are_on_none_below() -> None:
    leaf = SlurmSwitch("leaf", ("a", "b"), (), {"speed": "9"})
    top = SlurmSwitch("top", ("a", "b", "c"), ("leaf", "gone"), {})
    tree = SlurmTopology("t", "tree", (leaf, top), default=True)
    block = SlurmTopology("k", "block", blocks=(SlurmSwitch("b1", ("a",), (), {}),), block_sizes=(4, 8))
    site = Site()
    add_topology(site, [block, tree])
    assert site.switches == [SiteSwitch("leaf", ("a", "b")), SiteSwitch("top", ("c",), ("leaf", "gone"))]
    assert site.aside == {"Other topologies": ["k"], "More on switches": ["leaf: speed=9"]}
    blocks = Site()
    add_topology(blocks, [block, SlurmTopology("u", "flat")])
    assert blocks.switches == [SiteSwitch("b1", ("a",))]
    assert blocks.aside["Blocks"][1:] == ["block sizes 4, 8"]
    flat = Site()
    add_topology(flat, [SlurmTopology("u", "flat"), block])
    assert (flat.switches, flat.aside) == ([], {})


def row(
    names: str,
    gpus: int,
    count: int = 0,
    state: str = "IDLE",
    flags: tuple[str, ...] = (),
    cpus: int = -1,
    memory: int = -1,
    kind: str = "",
    features: tuple[str, ...] = (),
    reason: str = "",
) -> NodeRow:
    own = tuple(names.split())
    return NodeRow(own, count or len(own), (), state, flags, cpus, memory, gpus, 0, kind, features, reason, 1)


def test_nodes_of_a_list_count_once_and_are_parted_by_what_they_have() -> None:
    site = Site()
    add_nodes(
        site,
        [
            row("a b", 4, cpus=8, memory=30, kind="t4"),
            row("b c", 4, cpus=8, memory=30, kind="t4", state="DOWN", reason="none"),
            row("d", -1),
            row("e f", 2, count=5, flags=("DRAIN",), reason="disk", features=("x", "y")),
            row("g h", 3, state="FUTURE"),
            row("a", 2, state="FAIL", features=("x",)),
            row("i", 2, features=("x", "y")),
        ],
    )
    told = [(g.names, g.gpus, g.gpu_type, g.cores, g.memory_bytes) for g in site.nodes]
    assert told == [
        (("a", "b", "c"), 4, "t4", 8, 30),
        (("d",), 0, "", None, None),
        (("e", "f", "i"), 2, "", None, None),
    ]
    assert site.aside == {
        "States of nodes, all taken to be up": ["c: DOWN", "e to f: IDLE+DRAIN: disk"],
        "Nodes without names": ["3 in state IDLE: left out"],
        "Nodes that are not there yet": ["g to h: FUTURE"],
        "Features of nodes": ["e to i: x,y"],
    }
