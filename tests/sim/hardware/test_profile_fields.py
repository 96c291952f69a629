"""Every figure of a hardware profile is read by a run, or is said to be where others come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from equipoise.api import load
from equipoise.sim.hardware import profile as file
from equipoise.sim.run import run

PROVENANCE = {
    "HardwareProfile": {"schema_version", "why", "kind", "source", "date", "conditions", "versions", "figures"},
    "Accelerator": {"vendor", "source", "kind", "price_date"},
    "Fabric": {"source", "kind"},
    "FabricRange": set(),
    "EfficiencyPoint": set(),
    "StepTime": {"source", "kind"},
}
"""What no run reads: reasons, conditions and origins; `figures` are measured again by `calibrate --check`."""

HANDED_DOWN = {"HardwareProfile": {"steps"}, "StepTime": {"accelerator"}}
"""Read as the profile is loaded: each accelerator gets its steps then, and runs read these."""

MINE = {
    "name": "mine",
    "kind": "measured",
    "source": "a test",
    "date": "2026-01-01",
    "node_base_w": "200 W",
    "storage_read_bytes_per_s": "1 GB/s",
    "figures": {"copy_bytes_per_s": 1e9},
    "accelerators": {
        "a": {
            "vendor": "none",
            "flop_per_s": {"fp16": "100 TFLOPS"},
            "hbm_bytes_per_s": "1 TB/s",
            "memory_bytes": "40 GB",
            "link_bytes_per_s": "100 GB/s",
            "launch_latency_s": "5 us",
            "efficiency": [{"flop": "1 GFLOP", "efficiency": 0.2}, {"flop": "1 TFLOP", "efficiency": 0.6}],
            "share_kappa": 0.3,
            "interference": 0.1,
            "mig": ["1g.5gb", "3g.20gb"],
            "idle_w": "50 W",
            "max_w": "300 W",
            "host_w": "30 W",
            "thermal_c_per_w": "0.1 C/W",
            "tau_s": "30 s",
            "throttle_c": "50 C",
            "throttle_slope": 0.01,
            "price_usd_per_gpu_h": "2 USD/h",
            "price_date": "2026-01-01",
        }
    },
    "fabrics": [
        {
            "tier": tier,
            "collective": "all_reduce",
            "accelerator": "a",
            "alpha_s": "10 us",
            "bytes_per_s": "10 GB/s",
            "pieces": [{"from_bytes": "1 MB", "alpha_s": "20 us", "bytes_per_s": "9 GB/s"}],
        }
        for tier in ("intra", "inter")
    ],
    "steps": [
        {
            "workload": "timed",
            "accelerator": "a",
            "precision": "fp16",
            "alpha_s": "5 ms",
            "beta_s": "1 ms",
            "residual_cov": 0.1,
            "overlap": 2.0,
        }
    ],
}

SCENARIO = {
    "schema_version": 1,
    "name": "it",
    "why": "a test",
    "cluster": {
        "hardware": "mine.yaml",
        "nodes": [{"count": 2, "gpus": 2, "accelerator": "a", "nic": "10 Gbit/s", "sharing": "mig", "name": "n"}],
    },
    "workload": {
        "models": {
            "timed": {"step": "timed", "precision": "fp16", "gradient": "100 MB"},
            "counted": {
                "kind": "large-products",
                "flop_per_sample": "10 GFLOP",
                "precision": "fp16",
                "parameters": 1e7,
                "samples_per_pass": 8,
            },
        },
        "jobs": [
            {"name": "timed", "gpus": 4, "model": "timed", "steps": 30, "global_batch": 32},
            {"name": "counted", "gpus": 4, "model": "counted", "steps": 30, "global_batch": 32},
        ],
    },
    "thermal": {"every": "1 s"},
    "policy": ["s1", "s2", "s3", "s4"],
}


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """(class, field) of all that is read of the profile from here on; checks when it was loaded do not count."""
    found: set[tuple[str, str]] = set()
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(MINE))
    file.load_profile(tmp_path / "mine.yaml")
    for name in PROVENANCE:
        kind = getattr(file, name)

        def read(one: Any, field: str, kind: type = kind) -> Any:
            found.add((kind.__name__, field))
            return object.__getattribute__(one, field)

        monkeypatch.setattr(kind, "__getattribute__", read)
    return found


def test_every_field_is_read_by_a_run_or_named_as_provenance(tmp_path: Path, seen: set[tuple[str, str]]) -> None:
    (tmp_path / "it.yaml").write_text(yaml.safe_dump(SCENARIO))
    run(load(tmp_path / "it.yaml"), seed=1)
    for name, provenance in PROVENANCE.items():
        fields = set(getattr(file, name).model_fields)
        read = {field for kind, field in seen if kind == name} & fields
        assert fields - read - HANDED_DOWN.get(name, set()) == provenance, name
