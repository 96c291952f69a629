"""What a profile measured is what is simulated: each figure alone changes the outcome, as a calculation says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import equipoise
from equipoise.policies.physics import overlapped_s
from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.loading.file import dump, from_mapping, load
from equipoise.sim.record import Run
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.scenario.tree import write_tree
from equipoise.study.bounds import lower_bound
from equipoise.study.questions.levers import no_jitter
from tests.scenarios import model

STEPS = 100
HALF = {"gpus": 1, "gpu_share": 0.5, "global_batch": 10}  # 0.1 s a step on a whole GPU


def profile(path: Path, first: dict[str, Any], second: dict[str, Any] | None = None, **more: Any) -> Path:
    """A measured profile of accelerators `a` and `b`, their collective, and a step `net` of `a`."""
    rates = {"flop_per_s": {"fp32": 1e12}, "hbm_bytes_per_s": 1e11, "memory_bytes": 1e10}
    step = {"workload": "net", "accelerator": "a", "precision": "fp32", "alpha_s": 0.0, "beta_s": 0.01}
    fabrics = [
        {"tier": tier, "collective": "all_reduce", "alpha_s": 0.0, "bytes_per_s": 1e9} for tier in ("intra", "inter")
    ]
    step_more = more.pop("step", {})
    made = {
        "schema_version": 1,
        "name": "mine",
        "kind": "measured",
        "accelerators": {"a": rates | first, "b": rates | (second or {})},
        "fabrics": fabrics,
        "steps": [step | step_more],
    }
    path.write_text(write_tree(made | more))
    return path


def case(hardware: Path, jobs: list[dict[str, Any]], *nodes: dict[str, Any], **keys: Any) -> Scenario:
    """Training jobs of one model on nodes of one GPU `a`."""
    groups = [{"name": "n", "gpus": 1, "accelerator": "a"} | node for node in nodes or ({},)]
    top = {name: keys.pop(name) for name in ("noise",) if name in keys}
    return from_mapping(
        {
            "schema_version": 1,
            "name": "case",
            "cluster": {"hardware": str(hardware), "nodes": groups},
            "workload": {
                "models": {"m": keys or model()},
                "jobs": [{"model": "m", "steps": STEPS} | job for job in jobs],
            },
        }
        | top
    )


def run(spec: Scenario, **options: Any) -> Run:
    return equipoise.run(spec, policy="none", **options)


def seconds(spec: Scenario) -> list[float]:
    found: list[float] = run(spec).jobs["completion_s"].tolist()
    return found


@pytest.mark.parametrize("kappa", [0.25, 1.0, 4.0])
def test_speed_on_a_share_follows_the_measured_curve(tmp_path: Path, kappa: float) -> None:
    """100 steps of 0.1 s on half a GPU: at (1 + kappa) 0.5 / (0.5 + kappa) of its speed."""
    hardware = profile(tmp_path / "p.yaml", {"share_kappa": kappa})
    assert seconds(case(hardware, [HALF])) == pytest.approx([10.0 * (0.5 + kappa) / (0.5 * (1 + kappa))])


def test_each_worker_has_the_curve_of_its_own_gpu(tmp_path: Path) -> None:
    """Two workers, one on each kind: the job goes at the pace of the one whose curve is the worse."""
    hardware = profile(tmp_path / "p.yaml", {"share_kappa": 0.25}, {"share_kappa": 4.0})
    job = HALF | {"gpus": 2, "global_batch": 20}
    spec = case(hardware, [job], {"name": "x"}, {"name": "y", "accelerator": "b"})
    assert seconds(spec) == pytest.approx([10.0 * 4.5 / (0.5 * 5.0)], rel=1e-6)
    alike = profile(tmp_path / "q.yaml", {"share_kappa": 0.25}, {"share_kappa": 0.25})
    spec = case(alike, [job], {"name": "x"}, {"name": "y", "accelerator": "b"})
    assert seconds(spec) == pytest.approx([10.0 * 0.75 / (0.5 * 1.25)], rel=1e-6)


def test_what_two_halves_do_to_each_other_is_what_was_measured(tmp_path: Path) -> None:
    """Neighbours on half of the GPU each took 1.25 times as long: iota is 0.5."""
    hardware = profile(tmp_path / "p.yaml", {"share_kappa": 1.0, "interference": 0.5})
    alone_s = 10.0 * 1.5
    assert seconds(case(hardware, [HALF])) == pytest.approx([alone_s])
    assert seconds(case(hardware, [HALF, HALF])) == pytest.approx([1.25 * alone_s] * 2)
    stronger = profile(tmp_path / "q.yaml", {"share_kappa": 1.0, "interference": 1.0})
    assert seconds(case(stronger, [HALF, HALF])) == pytest.approx([1.5 * alone_s] * 2)


def test_the_scenario_s_word_replaces_what_was_measured_and_a_note_says_so(tmp_path: Path) -> None:
    hardware = profile(tmp_path / "p.yaml", {"share_kappa": 0.25, "interference": 0.5})
    measured = run(case(hardware, [HALF, HALF]))
    assert measured.notes[-2:] == (
        "model m: share_kappa: 0.25, measured on a",
        "model m: interference: 0.5, measured on a",
    )
    said = run(case(hardware, [HALF, HALF], **model(share_kappa=1.0, interference=0.0)))
    assert said.jobs["completion_s"].tolist() == pytest.approx([15.0, 15.0])
    assert said.notes[-2:] == (
        "model m: share_kappa: the scenario's 1 in place of 0.25, measured on a",
        "model m: interference: the scenario's 0 in place of 0.5, measured on a",
    )


def test_steps_vary_as_measured_ones_did(tmp_path: Path) -> None:
    whole = {"gpus": 1, "global_batch": 10}
    step = {"step": "net", "precision": "fp32", "exchange": {"alpha": 0.0, "rate": 1e10}}
    found = {}
    for cov in (0.0, 0.1, 0.3):
        hardware = profile(tmp_path / f"{cov}.yaml", {}, step={"residual_cov": cov})
        found[cov] = [run(case(hardware, [whole], **step), seed=seed).jobs["completion_s"][0] for seed in (0, 1)]
        assert lower_bound(case(hardware, [whole], **step)).noise_free == (cov > 0)
    assert found[0.0] == pytest.approx([10.0, 10.0])
    assert 0.0 < abs(found[0.1][0] - 10.0) < abs(found[0.3][0] - 10.0)
    assert found[0.1][0] != found[0.1][1]
    typed = case(hardware, [whole], **step, noise={"step_cov": 0.1})
    assert [run(typed, seed=seed).jobs["completion_s"][0] for seed in (0, 1)] == found[0.1]
    assert seconds(no_jitter(typed)) == pytest.approx([10.0])
    calm = profile(tmp_path / "calm.yaml", {})
    assert no_jitter(spec := case(calm, [whole], **step)) is spec


def test_a_step_hides_its_exchange_as_measured(tmp_path: Path) -> None:
    """Two workers in a node, 0.1 s of work and a ring of 100 MB at 1 GB/s."""
    job = {"gpus": 2, "global_batch": 20}
    step = {"step": "net", "precision": "fp32", "gradient": "100 MB"}
    for gamma in (1.0, 2.0, 5.0):
        hardware = profile(tmp_path / f"{gamma}.yaml", {}, step={"overlap": gamma})
        spec = case(hardware, [job], {"gpus": 2}, **step)
        assert seconds(spec) == pytest.approx([STEPS * overlapped_s(0.1, 0.1, gamma)])
        assert seconds(case(hardware, [job], {"gpus": 2}, **step, overlap=1.0)) == pytest.approx([20.0])


def test_links_and_disks_of_a_node_are_those_of_the_profile(tmp_path: Path) -> None:
    """A ring of 4 GPUs in one node at 2 GB/s and GPU, all ports together; a disk that reads 1 MB samples."""
    rates = {"link_bytes_per_s": 2e8}
    job = {"gpus": 2, "global_batch": 20}
    keys = model(gradient="100 MB", exchange={"alpha": 0.0, "rate": 1e12})
    slow = seconds(case(profile(tmp_path / "p.yaml", rates), [job], {"gpus": 2}, **keys))
    fast = seconds(case(profile(tmp_path / "q.yaml", {"link_bytes_per_s": 4e8}), [job], {"gpus": 2}, **keys))
    assert slow[0] - 10.0 == pytest.approx(2 * (fast[0] - 10.0))
    typed = case(profile(tmp_path / "p.yaml", rates), [job], {"gpus": 2, "fabric": 4e8}, **keys)
    assert seconds(typed) == fast
    disk = profile(tmp_path / "d.yaml", {}, storage_read_bytes_per_s=5e7)
    reads = {"gpus": 1, "global_batch": 10, "data": {"samples": 1000, "sample_size": "10 MB"}}
    assert seconds(case(disk, [reads])) == pytest.approx([STEPS * 10 * 1e7 / 5e7])
    assert seconds(case(disk, [reads], {"local_read": 2e8})) == pytest.approx([STEPS * 10 * 1e7 / 2e8])


@pytest.mark.parametrize("kind", ["assumed", "catalogue"])
def test_what_was_not_measured_is_not_taken(tmp_path: Path, kind: str) -> None:
    stated = profile(tmp_path / "p.yaml", {}, storage_read_bytes_per_s={"value": 1e9, "kind": kind})
    assert case(stated, [HALF]).cluster.nodes[0].local_read is None


def test_a_written_scenario_means_the_same(tmp_path: Path) -> None:
    spec = case(profile(tmp_path / "q.yaml", {"link_bytes_per_s": 1e9, "share_kappa": 0.5}), [HALF])
    (tmp_path / "again.yaml").write_text(dump(spec))
    assert load(tmp_path / "again.yaml") == spec
    assert seconds(load(tmp_path / "again.yaml")) == seconds(spec)


def test_the_shipped_measured_profile_acts() -> None:
    """On half of the processor, beside a neighbour, at the kappa and iota that its file states."""
    a = load_profile("amd_epyc_2_cores").accelerator("amd_epyc")
    assert a.share_kappa is not None
    assert a.interference is not None
    spec = case(Path("amd_epyc_2_cores"), [HALF, HALF], {"accelerator": "amd_epyc"})
    kappa, iota = a.share_kappa.value, a.interference.value
    wanted = 10.0 * (0.5 + kappa) / (0.5 * (1 + kappa)) * (1 + 0.5 * iota)
    assert seconds(spec) == pytest.approx([wanted] * 2)
