"""What Equipoise says of the steps and the memory that `gpu.large` measured, none of which was fitted."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from equipoise.calibrate.fit.compose import UnitCosts
from equipoise.calibrate.fit.compose_fits import prior_of, step_model, steps_of, unit_costs
from equipoise.calibrate.measure.operations import from_columns
from equipoise.calibrate.measure.training import FRAMEWORK
from equipoise.calibrate.samples import SampleSet
from equipoise.sim.hardware.profile import load_profile
from equipoise.study.questions.fits import fits

STACKS = {False: "fsdp-eager/H100", True: "megatron-core/H100"}
"""By whether it was compiled: the software that comes with Equipoise and is most like it, on the sister GPU."""
PRECISION = "bf16"


def scenario(found: Mapping[str, Any], hardware: str) -> dict[str, Any]:
    """One job of one model for each case, on one GPU of a profile, by their shape alone."""
    shape = found["shape"]
    models, jobs = {}, []
    for k, case in enumerate(found["cases"]):
        models[f"case{k}"] = {
            "precision": PRECISION,
            "transformer": {
                "layers": shape["layers"],
                "hidden": shape["hidden"],
                "heads": shape["heads"],
                "ffn": 4 * shape["hidden"],
                "vocab": shape["vocab"],
                "learned_positions": shape["positions"],
                "sequence": case["sequence"],
                "tied": True,
                "norm": "layer",
                "bias": True,
                "layout": {
                    "micro_batch": case["batch"],
                    "recompute": "full" if case["recompute"] else "none",
                },
                "stack": STACKS[case["compiled"]],
            },
        }
        jobs.append(
            {"name": f"case{k}", "gpus": 1, "model": f"case{k}", "steps": 10, "global_batch": case["batch"]}
        )
    (accelerator,) = load_profile(hardware).accelerators
    return {
        "schema_version": 1,
        "name": "large",
        "cluster": {
            "hardware": hardware,
            "nodes": [{"count": len(jobs), "gpus": 1, "accelerator": accelerator, "nic": "100 Gbit/s"}],
        },
        "workload": {"models": models, "jobs": jobs},
        "policy": ["fifo"],
    }


def from_shape(found: Mapping[str, Any], hardware: str) -> list[dict[str, float]]:
    """Seconds and peak bytes of every case, from its shape and a profile."""
    with tempfile.TemporaryDirectory(prefix="equipoise-") as folder:
        path = Path(folder, "large.yaml")
        path.write_text(yaml.safe_dump(scenario(found, hardware)))
        return [
            {
                "step_s": each.step_s,
                "peak_bytes": each.memory.peak,
                "peak_low_bytes": each.memory.low,
                "peak_high_bytes": each.memory.high,
            }
            for each in fits(path)
        ]


def from_operations(found: Mapping[str, Any], samples: SampleSet) -> list[float | None]:
    """Seconds of every case whose operations were noted, as the calibrated costs of these give them."""
    costs: UnitCosts = unit_costs(samples, PRECISION, FRAMEWORK)
    steps = steps_of(samples, costs, PRECISION, FRAMEWORK)
    model = step_model(steps, costs.overlapped, prior_of(samples, costs, PRECISION, FRAMEWORK))
    noted = [case.get("operations") for case in found["cases"]]
    return [None if o is None else float(model.predict(costs.totals(from_columns(o)))) for o in noted]


def measured_s(case: Mapping[str, Any]) -> float | None:
    """Median seconds of a case's steps; None where it did not fit."""
    return statistics.median(case["steps_s"]) if "steps_s" in case else None
