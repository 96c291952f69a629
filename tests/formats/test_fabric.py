"""Topologies of machines and fabrics."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.formats.fabric import read_ibnetdiscover, read_nccl_topology, read_topology_matrix
from equipoise.formats.text.errors import FormatError

XML = b"""<system version="1">
  <cpu numaid="0" arch="x86_64">
    <pci busid="0000:01:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:02:00.0" class="0x030200" link_speed="5.0 GT/s PCIe" link_width="4">
        <gpu dev="0" sm="90"><nvlink target="0000:07:00.0" count="5" tclass="0x068000"/></gpu>
      </pci>
      <nic><net name="mlx5_0" dev="0" speed="400000"/></nic>
    </pci>
    <pci busid="0000:03:00.0" class="0x030200" link_speed="" link_width=""/>
  </cpu>
</system>
"""
MATRIX = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tPXB\t0-55\t0\t\tN/A\nGPU1\tNV18\t X \tSYS\t56-111\t1\t\tN/A\nNIC0\tPXB\tSYS\t X \t\t\n"
    "\nLegend:\n\n  X    = Self\n  NV#  = Connection\n\nNIC Legend:\n\n  NIC0: mlx5_0\n"
)
FABRIC = b"""# Topology file: generated
vendid=0x2c9
Switch 65 "S-1" # "MF0;leaf:MQM9700/U1" enhanced port 0 lid 73 lmc 0
[1] "H-a"[1](b8ce) # "node-1 mlx5_0" lid 647 4xNDR
[2](aa) "S-2"[7] # "spine" lid 9 2xHDR
[3] not a port

Ca 1 "H-a" # "node-1 mlx5_0"
[1](b8ce) "S-1"[1] # lid 647 lmc 0 "leaf" lid 73 4xNDR
"""


def test_devices_of_a_machine_and_the_speed_of_their_links() -> None:
    devices = read_nccl_topology(XML)
    assert [device.kind for device in devices] == ["cpu", "pci", "pci", "gpu", "nvlink", "nic", "net", "pci"]
    assert [device.parent for device in devices] == [-1, 0, 1, 2, 3, 1, 5, 0]
    assert devices[1].bytes_per_s == pytest.approx(32e9 * 16 * 128 / 130 / 8)
    assert devices[2].bytes_per_s == pytest.approx(5e9 * 4 * 0.8 / 8)
    assert devices[6].bytes_per_s == 50e9
    assert devices[7].bytes_per_s == 0  # a virtual machine hides it
    assert devices[4].values["count"] == "5"


def test_the_matrix_of_a_machine() -> None:
    matrix = read_topology_matrix(MATRIX.encode())
    assert matrix.devices == ("GPU0", "GPU1", "NIC0")
    assert matrix.links == (("X", "NV18", "PXB"), ("NV18", "X", "SYS"), ("PXB", "SYS", "X"))


def test_glued_cells_and_blanks_for_tabs() -> None:
    text = b"     GPU0  GPU1  NIC0\nGPU0  X   PXBNODE\nGPU1 PXB  X  SYS\nNIC0 NODE SYS X\n"
    assert read_topology_matrix(text).links[0] == ("X", "PXB", "NODE")


def test_a_fabric() -> None:
    fabric = read_ibnetdiscover(FABRIC)
    switch, adapter = fabric.nodes
    assert (switch.kind, switch.id, switch.ports, switch.description) == ("Switch", "S-1", 65, "MF0;leaf:MQM9700/U1")
    assert [(c.port, c.peer, c.peer_port, c.bits_per_s) for c in switch.cables] == [
        (1, "H-a", 1, 400e9),
        (2, "S-2", 7, 100e9),
    ]
    assert (adapter.cables[0].peer, adapter.cables[0].bits_per_s) == ("S-1", 400e9)
    assert [(c.reason, c.first_line) for c in fabric.changes] == [("an unreadable port", 6)]


@pytest.mark.parametrize("reader", [read_nccl_topology, read_topology_matrix, read_ibnetdiscover])
@given(
    data=st.binary(max_size=150),
    begin=st.sampled_from([b"", XML, MATRIX.encode(), FABRIC, b"GPU0 GPU1\n", b"<system>"]),
)
def test_any_bytes_give_a_topology_or_one_clear_error(reader: object, data: bytes, begin: bytes) -> None:
    try:
        reader(begin + data)  # type: ignore[operator]
    except FormatError as error:
        message = str(error)
    else:
        message = ""
    assert "\n" not in message


SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "formats"


@pytest.mark.shared_data
@pytest.mark.skipif(not SHARED.is_dir(), reason="the public data are not beside the checkout")
def test_real_machines_and_a_real_fabric() -> None:
    fabric = read_ibnetdiscover(SHARED / "ibnetdiscover-example.out.gz")
    assert Counter(node.kind for node in fabric.nodes) == {"Switch": 40, "Ca": 582}
    assert fabric.changes == ()
    rates = Counter(cable.bits_per_s for node in fabric.nodes for cable in node.cables)
    assert max(rates, key=lambda rate: rates[rate]) == 400e9
    assert rates[0.0] == 0
    counts = {
        name: Counter(device.kind for device in read_nccl_topology(SHARED / f"nccl-topo-{name}.xml"))
        for name in ("ndv4", "ndv5", "8p-940")
    }
    assert counts["8p-940"]["gpu"] == 8
    assert counts["8p-940"]["net"] == 8
    assert all(count["cpu"] >= 2 for count in counts.values())
