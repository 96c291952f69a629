"""What Equipoise says of the steps and the memory that `gpu.large` measured, and how a stack was fitted to some."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.llm.fit import PRIORS, Prior, fit
from equipoise.sim.llm.quantities import quantities
from equipoise.sim.llm.stack import Stack
from equipoise.study.questions.fits import Fits, fits

Stacks = Mapping[bool, str]
"""A stack's name by whether the model was compiled."""
PUBLIC: Stacks = {False: "fsdp-eager/H100", True: "megatron-core/H100"}
"""Fitted to public steps on the sister GPU: the software that is most like it."""
FITTED: Stacks = {False: "pytorch/H200", True: "pytorch-compiled/H200"}
"""Fitted to the steps of the 1.3 billion parameters (`fitted_stacks`)."""
FITTED_ON = "NVIDIA H200"
PRECISION = "bf16"


def scenario(found: Mapping[str, Any], hardware: str, stacks: Stacks, accelerator: str) -> dict[str, Any]:
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
                "layout": {"micro_batch": case["batch"], "recompute": "full" if case["recompute"] else "none"},
                "stack": stacks[case["compiled"]],
            },
        }
        jobs.append({"name": f"case{k}", "gpus": 1, "model": f"case{k}", "steps": 10, "global_batch": case["batch"]})
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


def from_shape(found: Mapping[str, Any], hardware: str, stacks: Stacks) -> list[dict[str, float]]:
    """Seconds and peak bytes of every case, from its shape and a profile."""
    (accelerator,) = load_profile(hardware).accelerators
    return [
        {
            "step_s": each.step_s,
            "peak_bytes": each.memory.peak,
            "peak_low_bytes": each.memory.low,
            "peak_high_bytes": each.memory.high,
        }
        for each in _asked(found, hardware, stacks, accelerator)
    ]


def _asked(found: Mapping[str, Any], hardware: str, stacks: Stacks, accelerator: str) -> list[Fits]:
    with tempfile.TemporaryDirectory(prefix="equipoise-") as folder:
        path = Path(folder, "large.yaml")
        path.write_text(yaml.safe_dump(scenario(found, hardware, stacks, accelerator)))
        return fits(path)


def measured_s(case: Mapping[str, Any]) -> float | None:
    """Median seconds of a case's steps; None where it did not fit."""
    return statistics.median(case["steps_s"]) if "steps_s" in case else None


HOST = Prior(1e-3, 0.5e-3, 1.5e-3, weight=1.0)
"""Of `host_s_per_layer`, which the few steps that the host bounds do not tell from the rest: the smallest steps
take 2 ms a layer, forward and backward, of which the device needs half."""


def fitted_stacks(found: Mapping[str, Any], accelerator: str = "h200_sxm") -> dict[str, Stack]:
    """The stacks FITTED, by a data sheet, from the steps of one shape.

    Without the step that starting recomputation from the host bounds, of which `sim.llm` knows nothing.
    """
    plans = [each.plan for each in _asked(found, "catalogue", PUBLIC, accelerator)]
    rows = [
        (plan, float(measured_s(case) or 0.0), FITTED[case["compiled"]])
        for plan, case in zip(plans, found["cases"], strict=True)
        if not (case["recompute"] and case["batch"] == 1)
    ]
    labels = [name for _, _, name in rows]
    seconds = np.array([s for _, s, _ in rows])
    fitted = fit(quantities([p for p, _, _ in rows]), seconds, {"stack": labels}, PRIORS | {"host_s_per_layer": HOST})
    return {name: fitted.stack({"stack": name}) for name in FITTED.values()}
