"""What a site's cluster reads like as a scenario, line by line."""

from __future__ import annotations

import yaml

from equipoise.formats.slurm.hardware import Gres, SlurmTopology
from equipoise.formats.slurm.hardware import Switch as SlurmSwitch
from equipoise.sim.loading.site.cluster import Site, SiteNodes, SiteSwitch
from equipoise.sim.loading.site.slurm import add_gres, add_topology
from equipoise.sim.loading.site.write import scenario_text


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
        "Flavors of GPUs that no node has or that are unknown: their quotas are left out": ["f"],
        "QOS of partitions, taken without limits (`sacctmgr show qos -P` lists them)": ["q"],
    }
    assert "queues:" not in scenario_text(Site(nodes=[SiteNodes(("a",), 2)]), ["f"], {})


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
