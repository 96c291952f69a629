"""Parts of a job that each need one rack: Slurm's --segment on topology/block, slices of Kueue's pods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import equipoise
from equipoise.cli import main
from equipoise.sim.loading.site.read import import_site
from equipoise.sim.scenario.tree import InputError
from equipoise.study.questions.explain import decisions, read_folder, why_it_waited

BLOCKS = """\
BlockName=b1 Nodes=n[01-17]
BlockName=b2 Nodes=n[18-34]
BlockName=b3 Nodes=n[35-51]
BlockSizes=17
"""
CONF = "ClusterName=lab\nNodeName=n[01-51] Gres=gpu:4\nPartitionName=p Nodes=ALL Default=YES\n"
FORM = "JobID|Submit|Start|End|State|NNodes|ReqTRES|SubmitLine"


def run(tmp_path: Path, policy: str, rows: list[str]) -> Any:
    """The folder of a run of accounting records on three blocks of 17 nodes of 4 GPUs."""
    for name, text in (("slurm.conf", CONF), ("topology.conf", BLOCKS), ("jobs.txt", "\n".join([FORM, *rows]) + "\n")):
        (tmp_path / name).write_text(text)
    files = [tmp_path / "slurm.conf", tmp_path / "topology.conf"]
    text = import_site(files, out=tmp_path / "lab.yaml", trace=str(tmp_path / "jobs.txt"))
    (tmp_path / "lab.yaml").write_text(text)
    equipoise.run(tmp_path / "lab.yaml", policy=policy, out=tmp_path / "run", journal=True)
    return read_folder(tmp_path / "run")


def record(job: int, minute: int, nodes: int, segment: int = 0) -> str:
    """A job of an hour on whole nodes."""
    when = f"2024-03-01T10:{minute:02}:00", "2024-03-01T11:00:00", "2024-03-01T12:00:00"
    line = f"sbatch --segment={segment} job.sh" if segment else "sbatch job.sh"
    return f"{job}|{when[0]}|{when[1]}|{when[2]}|COMPLETED|{nodes}|gres/gpu={4 * nodes},node={nodes}|{line}"


@pytest.mark.parametrize("policy", ["multifactor", "sjf", "s4"])
def test_36_nodes_in_segments_of_12_are_12_of_each_block(
    tmp_path: Path, policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """17 + 17 + 2 would be the fewest blocks. 3 more jobs of 5 leave no block with room for another 12."""
    folder = run(tmp_path, policy, [record(1, 0, 36, 12), record(2, 1, 12, 12)])
    assert folder.jobs["start_s"].tolist() == [0.0, 3600.0]
    allocation = next(d.plan.allocation for d in decisions(folder) if d.plan.allocation is not None)
    nodes = np.unique(next(decisions(folder)).observation.gpus.node[allocation.gpus_of(0)])
    assert np.bincount(nodes // 17).tolist() == [12, 12, 12]
    if policy == "multifactor":
        (cause,) = why_it_waited(folder, 1).span_s
        assert cause.kind == "topology"  # 15 nodes are free, 5 in each block
        assert main(["explain", str(tmp_path / "run"), "1"]) == 0
        places = "12 of rack 0 (0-11), 12 of rack 1 (17-28), 12 of rack 2 (34-45)"
        assert f"started on 144 GPUs of 36 nodes, {places}" in capsys.readouterr().out


def test_slices_of_kueue_are_segments_and_one_larger_than_a_rack_never_starts(tmp_path: Path) -> None:
    pod = {"spec": {"containers": [{"resources": {"requests": {"nvidia.com/gpu": 4}}}]}}
    ask = {"required": "block", "podSetSliceRequiredTopology": "rack", "podSetSliceSize": 12}
    at = [
        {"type": kind, "status": "True", "lastTransitionTime": f"2024-03-01T1{hour}:00:00Z"}
        for kind, hour in (("Admitted", 0), ("Finished", 1))
    ]
    (tmp_path / "w.yaml").write_text(
        yaml.safe_dump(
            {
                "apiVersion": "kueue.x-k8s.io/v1beta1",
                "kind": "Workload",
                "metadata": {"name": "w", "creationTimestamp": "2024-03-01T10:00:00Z"},
                "spec": {"podSets": [{"name": "main", "count": 36, "topologyRequest": ask, "template": pod}]},
                "status": {"conditions": at},
            }
        )
    )
    case = {"schema_version": 1, "name": "x", "workload": {"trace": {"file": str(tmp_path / "w.yaml")}}}
    wide = {"nodes": [{"name": "n", "count": 51, "gpus": 4}], "topology": {"kind": "tree", "nodes_per_rack": 17}}
    assert equipoise.run({**case, "cluster": wide}, policy="kueue").jobs["start_s"].tolist() == [0.0]
    low = {"nodes": [{"name": "n", "count": 44, "gpus": 4}], "topology": {"kind": "tree", "nodes_per_rack": 11}}
    with pytest.raises(InputError, match="asks for 144 GPUs, the nodes that it may use have 44"):
        equipoise.run({**case, "cluster": low}, policy="kueue")
