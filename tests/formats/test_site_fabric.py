"""Nodes and rails of small machines and fabrics, by hand."""

from __future__ import annotations

import pytest

from equipoise.formats.fabric import Cable, FabricDevice, FabricNode, NetworkFabric, TopologyMatrix
from equipoise.sim.loading.site.cluster import Site, SiteNodes, SiteSwitch
from equipoise.sim.loading.site.fabric import add_fabric, node_of_matrix, node_of_nccl


def device(kind: str, parent: int = -1, rate: float = 0.0, **values: str) -> FabricDevice:
    return FabricDevice(kind, parent, {key.rstrip("_"): value for key, value in values.items()}, rate)


def test_a_machine_is_as_fast_as_its_ports_and_as_the_gpu_with_the_fewest_links() -> None:
    node, remarks = node_of_nccl(
        (
            device("gpu", sm="90"),
            device("nvlink", 0, count="3"),
            device("nvlink", 0, count="4"),
            device("gpu", sm="90"),
            device("nvlink", 3, count="5"),
            device("nvlink", -1, count="2"),
            device("net", rate=25e9, name="mlx5_0"),
            device("net", rate=50e9, name="mlx5_1"),
            device("net", rate=5e9, name="tenth"),
            device("net", rate=4.9e9, name="bond0"),
            device("net", rate=1e9),
            device("pci", rate=7e9, class_="0x020700"),
        )
    )
    assert (node.names, node.count, node.gpus, node.gpu_type) == ((), 1, 2, "H100")
    assert (node.nic_bytes_per_s, node.fabric_bytes_per_s) == (80e9, 125e9)
    assert remarks == ["slow ports left out: bond0, ?"]


def test_links_that_tell_no_count_are_one_and_fewer_than_none_are_none() -> None:
    one, _ = node_of_nccl((device("gpu", sm="70"), device("nvlink", 0), device("nvlink", 0, count="2")))
    assert one.fabric_bytes_per_s == 75e9
    none, remarks = node_of_nccl((device("gpu", sm="70"), device("nvlink", 0, count="-3")))
    assert (none.fabric_bytes_per_s, none.nic_bytes_per_s, remarks) == (None, None, [])


@pytest.mark.parametrize(
    ("target", "links", "total", "name"),
    [
        ({"sm": "60"}, 4, 80e9, "P100"),
        ({"sm": "70"}, 6, 150e9, "V100"),
        ({"sm": "80"}, 12, 300e9, "A100"),
        ({"sm": "86"}, 4, 56.25e9, ""),
        ({"sm": "90"}, 18, 450e9, "H100"),
        ({"sm": "100"}, 18, 900e9, "B200"),
        ({"sm": "103"}, 18, 900e9, "B300"),
        ({"gcn": "gfx906"}, 2, 100e9, "MI60"),
        ({"gcn": "908"}, 3, 138e9, "MI100"),
        ({"gcn": "910"}, 8, 400e9, "MI250X"),
        ({"gcn": "90a", "sm": "90"}, 8, 400e9, "MI250X"),
        ({"gcn": "gfx942"}, 7, 448e9, "MI300X"),
        ({"gcn": "gfx950"}, 7, 537.6e9, "MI355X"),
    ],
)
def test_links_of_a_gpu_carry_what_its_data_sheet_says(
    target: dict[str, str], links: int, total: float, name: str
) -> None:
    kind = "xgmi" if "gcn" in target else "nvlink"
    node, remarks = node_of_nccl((device("gpu", **target), device(kind, 0, count=f"{links}")))
    assert node.fabric_bytes_per_s == pytest.approx(total, rel=1e-13)
    assert (node.gpu_type, remarks) == (name, [])


def test_a_virtual_machine_shows_its_gpus_and_nics_by_their_pcie_alone() -> None:
    node, remarks = node_of_nccl(
        (
            device("pci", rate=30e9, class_="0x030200"),
            device("pci", rate=20e9, class_="0x030000"),
            device("pci", rate=0.0, class_="0x038000"),
            device("pci", rate=26e9, class_="0x120000"),
            device("pci", rate=3e9, class_="0x020700"),
            device("pci", rate=6e9, class_="0x020000"),
            device("pci", rate=9e9, class_="0x060400"),
            device("net_", rate=11e9, class_="0x020000"),
            device("cpu", rate=1e9, class_="0x030200"),
            device("xgmi", rate=1e9, class_="0x030200"),
            device("xgmi", rate=2e9, class_="0x020000"),
            device("cpu", rate=2e9, class_="0x020000"),
        )
    )
    assert (node.gpus, node.gpu_type, node.nic_bytes_per_s, node.fabric_bytes_per_s) == (4, "", 9e9, 20e9)
    assert remarks == [
        "no port rates: the NIC rate is that of their 2 PCIe links",
        "no links between GPUs are listed, as in virtual machines: the fabric is their PCIe",
    ]


def test_a_matrix_tells_the_fewest_links_between_two_gpus() -> None:
    rows = (
        ("X", "NV9", "SYS", "PXB"),
        ("PIX", "X", "NV12", "NV4"),
        ("PIX", "NV12", "X", "NV6"),
        ("NV2", "NV4", "NV6", "X"),
    )
    node, remarks = node_of_matrix(TopologyMatrix(("NIC0", "GPU0", "GPU1", "GPU2"), rows))
    assert (node.names, node.gpus, node.count) == ((), 3, 1)
    assert remarks == [
        "1 NICs without stated rates",
        "NV4: the link rate depends on the GPU type, which is not given; the default fabric",
    ]
    _, remarks = node_of_matrix(TopologyMatrix(("GPU0", "GPU1"), (("X", "SYS"), ("SYS", "X"))))
    assert remarks == [
        "no NIC is listed",
        "no NVLink between its GPUs: the default fabric is too fast for PCIe; set 'fabric'",
    ]


def adapter(host: str, *cables: tuple[str, float], kind: str = "Ca") -> FabricNode:
    own = tuple(Cable(k, peer, 1, rate) for k, (peer, rate) in enumerate(cables))
    return FabricNode(kind, f"H-{host}", host, 1, own)


def test_hosts_with_more_than_half_of_the_usual_rate_are_nodes() -> None:
    fabric = NetworkFabric(
        (
            adapter("c mlx5_0", ("A", 160e9)),
            adapter("c hca-1", ("A", 240e9)),
            adapter("a mlx5_0", ("A", 400e9)),
            adapter("half ib0_0", ("A", 200e9)),
            adapter("more roce_0", ("A", 208e9)),
            adapter("most bnxt_0", ("A", 800e9)),
            adapter("b mlx5_0", ("A", 400e9)),
            adapter("localhost mlx5_0", ("A", 400e9)),
            adapter("mlx5_0", ("A", 400e9)),
            adapter("d card", ("A", 400e9)),
            adapter("e mlx5_0 Aggregation Node", ("A", 400e9)),
            adapter("f mlx5_0", ("A", 400e9), kind="Rt"),
            adapter("g Aggregation Node mlx5_9", ("A", 400e9)),
        ),
        (),
    )
    site = Site()
    add_fabric(site, fabric, 6)
    told = [(group.names, group.count, group.gpus, group.nic_bytes_per_s) for group in site.nodes]
    assert told == [(("a", "b", "c"), 3, 6, 50e9), (("more",), 1, 6, 26e9), (("most",), 1, 6, 100e9)]
    assert site.nodes[0].remark == "6 GPUs a node: as given by --gpus"
    assert site.aside == {
        "Adapters without a host's name": ["3: left out"],
        "Hosts with few adapters, not taken as GPU nodes": ["half"],
    }


def test_nodes_that_were_told_are_parted_by_their_rates_and_the_others_stay() -> None:
    site = Site(
        nodes=[SiteNodes(("a", "b", "c", "e"), 4, nic_bytes_per_s=2e9), SiteNodes((), 8, count=3), SiteNodes(("f",), 2)]
    )
    fabric = NetworkFabric(
        (
            adapter("a mlx5_0", ("S", 24e9)),
            adapter("b mlx5_0", ("S", 40e9)),
            adapter("c mlx5_0", ("S", 24e9)),
            adapter("z mlx5_0", ("S", 24e9)),
            adapter("y mlx5_0", ("S", 24e9)),
            adapter("e mlx5_0"),
        ),
        (),
    )
    add_fabric(site, fabric, 6)
    told = [(group.names, group.count, group.gpus, group.nic_bytes_per_s) for group in site.nodes]
    assert told == [
        (("a", "c"), 2, 4, 3e9),
        (("b",), 1, 4, 5e9),
        (("e",), 1, 4, 2e9),
        ((), 3, 8, None),
        (("f",), 1, 2, None),
    ]
    assert site.aside == {"Hosts of the fabric that are not nodes": ["y, z"]}
    assert [switch.nodes for switch in site.switches] == [("a", "b", "c", "e")]


def test_hosts_on_the_same_rails_share_their_switches_uplinks() -> None:
    def switch(name: str, *cables: tuple[str, float]) -> FabricNode:
        own = tuple(Cable(k, peer, 1, rate) for k, (peer, rate) in enumerate(cables))
        return FabricNode("Switch", name, name, 9, own)

    fabric = NetworkFabric(
        (
            adapter("d mlx5_0", ("B", 24e9)),
            adapter("a mlx5_0", ("A", 24e9)),
            adapter("a mlx5_1", ("B", 24e9)),
            adapter("a mlx5_2", ("gone", 8e9)),
            adapter("b mlx5_0", ("C", 24e9)),
            adapter("c mlx5_0", ("B", 24e9), ("A", 16e9)),
            adapter("e mlx5_0", ("D", 24e9)),
            switch("A", ("S", 40e9), ("B", 56e9), ("H-a mlx5_0", 24e9), ("unknown", 24e9), ("R", 8e9), ("S", 16e9)),
            switch("B", ("S", 72e9)),
            switch("C", ("S", 88e9)),
            switch("D"),
            switch("S", ("A", 40e9)),
            FabricNode("Rt", "R", "router", 2, ()),
        ),
        (),
    )
    site = Site(nodes=[SiteNodes(("a", "b", "c", "d", "e", "x"), 4)])
    add_fabric(site, fabric, 6)
    assert site.switches == [
        SiteSwitch("rails-0", ("d", "a", "c"), uplink_bytes_per_s=16e9),
        SiteSwitch("rails-1", ("b",), uplink_bytes_per_s=11e9),
        SiteSwitch("rails-2", ("e",), uplink_bytes_per_s=None),
    ]
