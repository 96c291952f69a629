"""Configuration of Slurm: slurm.conf, gres.conf, topology.conf and .yaml, QOS rows."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.formats.slurm.config import read_slurm_conf
from equipoise.formats.slurm.hardware import read_gres_conf, read_qos, read_topology_conf, read_topology_yaml
from equipoise.formats.slurm.hostlist import expand_hosts
from equipoise.formats.text.errors import FormatError

CONF = rb"""# a cluster
ClusterName=toy   # of two kinds of nodes
SchedulerParameters=bf_window=4320,bf_continue
PriorityWeightAge=70000
PriorityWeightTRES=CPU=0,Mem=.03,GRES/gpu=30000
PriorityMaxAge=7-0
prioritydecayhalflife=12:00:00
NodeName=DEFAULT Sockets=2 CoresPerSocket=16 RealMemory=1000
NodeName=gn[01-02,07] Gres=gpu:a100:4,nvme:1 \
   Feature=ib,fast Weight=9
NodeName=DEFAULT RealMemory=2000
NodeName=x CPUs=8
PartitionName=DEFAULT MaxTime=2-0 State=UP
PartitionName=main Nodes=gn[01-02] Default=YES PriorityTier=3 QOS=q
PartitionName=all Nodes=ALL MaxTime=INFINITE
MailProg="/bin/my mail"
SwitchName=never Nodes=x
"""


def test_a_configuration() -> None:
    conf = read_slurm_conf(CONF)
    first, second = conf.nodes
    assert first.names == ("gn01", "gn02", "gn07")
    assert (first.cpus, first.memory_bytes, first.gpus, first.gpu_type) == (32, 1000 * 2**20, 4, "a100")
    assert (first.features, first.weight) == (("ib", "fast"), 9)
    assert (second.cpus, second.memory_bytes, second.gpus) == (8, 2000 * 2**20, 0)
    assert conf.cluster == "toy"
    assert conf.priority_weights == {"age": 70000.0}
    assert conf.scheduler_parameters == {"bf_window": "4320", "bf_continue": ""}
    assert conf.times_s == {"prioritymaxage": 604800.0, "prioritydecayhalflife": 43200.0}
    assert conf.settings["mailprog"] == "/bin/my mail"
    assert [dict(line.pairs)["switchname"] for line in conf.other] == ["never"]


def test_partitions_take_the_defaults_above_them() -> None:
    main, everything = read_slurm_conf(CONF).partitions
    assert (main.node_names, main.max_time_s, main.default, main.priority_tier, main.qos) == (
        ("gn01", "gn02"),
        172800.0,
        True,
        3,
        "q",
    )
    assert (everything.nodes, everything.node_names, everything.max_time_s) == ("ALL", (), math.inf)


def test_included_files_beside_it_and_ones_that_are_not(tmp_path: Path) -> None:
    (tmp_path / "nodes.conf").write_text("NodeName=a[1-3] CPUs=2\n")
    main = tmp_path / "slurm.conf"
    main.write_text("ClusterName=c\nInclude /etc/slurm/nodes.conf\ninclude absent.conf\nNoPair here\n")
    conf = read_slurm_conf(main)
    assert conf.nodes[0].names == ("a1", "a2", "a3")
    assert {(c.reason, c.first_line) for c in conf.changes} == {
        ("Include absent.conf: not found in the folder of the file", 3),
        ("a line without Key=Value", 4),
    }


def test_a_file_that_includes_itself_is_refused(tmp_path: Path) -> None:
    main = tmp_path / "slurm.conf"
    main.write_text("ClusterName=c\nInclude slurm.conf\n")
    with pytest.raises(FormatError, match="the files include each other"):
        read_slurm_conf(main)


def test_generic_resources() -> None:
    one, two = read_gres_conf(
        b"AutoDetect=off\nNodeName=g[1-2] Name=gpu Type=a100 File=/dev/nvidia[0-3] Cores=0-15 Links=-1,4,4,4\n"
        b"Name=gpu Count=2\n"
    )
    assert (one.nodes, one.type, one.count, one.other["links"]) == (("g1", "g2"), "a100", 4, "-1,4,4,4")
    assert (two.nodes, two.count) == ((), 2)
    assert read_gres_conf(b"AutoDetect=nvml\n") == ()


def test_topologies_tree_and_block() -> None:
    tree = read_topology_conf(b"SwitchName=s1 Nodes=n[1-2]\nSwitchName=top Switches=s[1-2] LinkSpeed=100\n")
    assert tree.kind == "tree"
    assert [(s.name, s.nodes, s.switches) for s in tree.switches] == [
        ("s1", ("n1", "n2"), ()),
        ("top", (), ("s1", "s2")),
    ]
    assert tree.switches[1].other == {"linkspeed": "100"}
    block = read_topology_conf(b"BlockName=rack1 Nodes=srv[1101-1108]\nBlockSizes=8,16,32\n")
    assert (block.kind, len(block.blocks[0].nodes), block.block_sizes) == ("block", 8, (8, 16, 32))


def test_topology_yaml() -> None:
    text = b"""
- topology: net
  cluster_default: true
  tree:
    switches:
      - {switch: s1, nodes: 'n[1-2]'}
      - {switch: top, children: 's[1-2]'}
- topology: racks
  block: {block_sizes: [4, 8], blocks: [{block: b1, nodes: 'n[01-04]'}]}
- topology: none
  flat: true
"""
    net, racks, none = read_topology_yaml(text)
    assert (net.kind, net.default, net.switches[1].switches) == ("tree", True, ("s1", "s2"))
    assert (racks.blocks[0].nodes, racks.block_sizes) == (("n01", "n02", "n03", "n04"), (4, 8))
    assert none.kind == "flat"


def test_qualities_of_service() -> None:
    text = b"Name|Priority|GraceTime|Preempt|Flags|UsageFactor|GrpTRES|MaxWall|MaxTRESPU|MaxJobsPU|\n"
    text += b"low|0|00:00:00|||1.000000|||||\nhigh|10|00:10:00|low,mid|Flag|0.5|gres/gpu=8|1-00:00:00|cpu=4|3|\n"
    low, high = read_qos(text)
    assert (low.limits, low.max_wall_s) == ({}, None)
    assert (high.priority, high.grace_time_s, high.preempt, high.usage_factor) == (10, 600.0, ("low", "mid"), 0.5)
    assert high.limits == {"GrpTRES": {"gres/gpu": "8"}, "MaxTRESPU": {"cpu": "4"}}
    assert (high.counts, high.max_wall_s) == ({"MaxJobsPU": 3}, 86400.0)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("tux[0-2,10],gn01", ("tux0", "tux1", "tux2", "tux10", "gn01")),
        ("r[1-2]n[08-10]", ("r1n08", "r1n09", "r1n10", "r2n08", "r2n09", "r2n10")),
        ("None assigned", ()),
        ("", ()),
    ],
)
def test_host_lists(text: str, names: tuple[str, ...]) -> None:
    assert expand_hosts(text) == names


@pytest.mark.parametrize("text", ["a[1-", "a]1[", "a[3-1]", "a[x]", "a[1-99999999]", "a[1-9999]b[1-9999]"])
def test_malformed_and_endless_host_lists(text: str) -> None:
    with pytest.raises(FormatError, match="host list"):
        expand_hosts(text)
    with pytest.raises(FormatError, match=r"c\.conf:2: host list"):
        read_slurm_conf(b"ClusterName=c\nNodeName=" + text.encode(), name="c.conf")


HOSTS = st.lists(st.integers(0, 400), min_size=1, max_size=30, unique=True)


@given(HOSTS, st.integers(1, 4))
def test_a_host_list_written_in_ranges_is_read_back(numbers: list[int], pad: int) -> None:
    assert expand_hosts("n[" + ",".join(f"{n:0{pad}}" for n in numbers) + "]") == tuple(f"n{n:0{pad}}" for n in numbers)


@given(
    st.binary(max_size=200), st.sampled_from([b"", b"NodeName=a ", b"Name=gpu ", b"SwitchName=s ", b"- topology: t\n "])
)
def test_any_bytes_give_a_result_or_one_clear_error(data: bytes, begin: bytes) -> None:
    for reader in (read_slurm_conf, read_gres_conf, read_topology_conf, read_topology_yaml, read_qos):
        try:
            reader(begin + data)  # type: ignore[operator]
        except FormatError as error:
            message = str(error)
        else:
            message = ""
        assert "\n" not in message
