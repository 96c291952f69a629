"""Records of live runs whose truth is known: made from a simulation, in the format that a live run writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.policies.contract import Decision, Policy
from equipoise.policies.record.export import stage_entries
from equipoise.policies.record.journal import append
from equipoise.policies.registry import make_policy
from equipoise.sim.loading.file import from_mapping
from equipoise.sim.run import run
from equipoise.study.twin.live_policy import AsLive, levers

EVERY = 4


@dataclass
class Truth:
    """A job of some ranks, one node each: seconds per sample by rank, and one change of speed."""

    per_sample_s: Sequence[float] = (2e-3, 2e-3)
    fixed_s: float = 1e-3
    exchange_s: float = 2e-3
    slow_rank: int = 0
    slow_at_s: float = 2.5
    slow_factor: float = 2.0
    step_cov: float = 0.0
    policy: str = "s1+s2+s3"
    batch: int = 96
    rounds: int = 80
    drift: float | None = 0.02
    mode: str = "act"
    manifest: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        return len(self.per_sample_s)

    def scenario(self) -> dict[str, Any]:
        fastest = min(self.per_sample_s)
        nodes = [{"name": f"n{k}", "speed": fastest / t} for k, t in enumerate(self.per_sample_s)]
        exchange = {"alpha": self.exchange_s / max(1, 2 * (self.ranks - 1)), "rate": 1e12}
        model = {
            "fixed_time": self.fixed_s,
            "sample_time": fastest,
            "gradient": 0,
            "exchange": exchange,
            "drift": 0 if self.drift is None else self.drift,
        }
        job = {
            "gpus": self.ranks,
            "model": "m",
            "samples": self.rounds * self.batch,
            "global_batch": self.batch,
            "data": {"samples": self.rounds * self.batch, "shards": 32},
            "checkpoint": {"interval": "never"},
        }
        slow = {"kind": "slow", "node": f"n{self.slow_rank}-0", "at": self.slow_at_s}
        return {
            "schema_version": 1,
            "name": "truth",
            "cluster": {"nodes": nodes},
            "workload": {"models": {"m": model}, "jobs": [job]},
            "decide": {"every_steps": EVERY, "every": 1e6, "on_events": False},
            "noise": {"step_cov": self.step_cov},
            "faults": {"events": [{**slow, "duration": 1e6, "factor": self.slow_factor}]},
        }


def simulated(truth: Truth) -> list[Decision]:
    """What the policy decides in the truth, which it sees as in a live job."""
    decided: list[Decision] = []
    fixed_samples = truth.fixed_s / min(truth.per_sample_s)
    held = frozenset[str]() if truth.mode == "act" else levers()
    asked = AsLive(make_policy(truth.policy), decided, held, frozenset(), fixed_samples, fixed_samples)
    run(from_mapping(truth.scenario()), policy=Policy("asked", (asked,)), seed=3)
    return decided


def write_run(truth: Truth, folder: Path, seed: int = 0) -> tuple[Path, int]:
    """Write the record; returns its folder and the first slow round."""
    folder.mkdir(parents=True, exist_ok=True)
    decisions = simulated(truth)
    lines: list[list[dict[str, Any]]] = [[] for _ in range(truth.ranks)]
    random, at_s, first_slow, number = np.random.default_rng(seed), 0.0, -1, 0
    for point, decision in enumerate(decisions, start=1):
        o = decision.observation
        samples, interval = o.workers.samples_per_step, int(o.jobs.sync_interval[0])
        for _ in range(-(-EVERY // interval)):
            slow = at_s >= truth.slow_at_s
            first_slow = number if slow and first_slow < 0 else first_slow
            at_s += _period(truth, lines, samples, interval, slow, number, random)
            number += interval
        told = {"number": point, "time_s": o.time_s, "point": point, "rounds": number, "change": None, "refused": []}
        lines[0].append({"event": "decision", "unix_s": at_s, **told})
        append(folder / "decisions-0.jsonl", decision)
    for rank, found in enumerate(lines):
        text = "".join(json.dumps(line) + "\n" for line in found)
        (folder / f"rounds-{rank}.jsonl").write_text(text)
    (folder / "manifest.json").write_text(json.dumps(manifest(truth)))
    return folder, first_slow


def _period(
    truth: Truth,
    lines: list[list[dict[str, Any]]],
    samples: Any,
    interval: int,
    slow: bool,
    first: int,
    random: np.random.Generator,
) -> float:
    """Append one period's rounds of every rank; returns its duration."""
    scale = np.array(truth.per_sample_s) / min(truth.per_sample_s)
    if slow:
        scale[truth.slow_rank] *= truth.slow_factor
    noise = np.exp(truth.step_cov * random.standard_normal((interval, truth.ranks)))
    compute_s = min(truth.per_sample_s) * samples * scale * noise
    update_s = np.broadcast_to(truth.fixed_s * scale, compute_s.shape)
    total_s = (compute_s + update_s).sum(axis=0)
    for k in range(interval):
        last = k == interval - 1
        tail_s = total_s.max() - total_s + truth.exchange_s if last else np.zeros(truth.ranks)
        for rank, found in enumerate(lines):
            found.append(
                {
                    "round": first + k,
                    "exchanged": last,
                    "local": interval > 1,
                    "ranks": truth.ranks,
                    "samples": float(samples[rank]),
                    "stall_s": 0.0,
                    "compute_s": float(compute_s[k, rank]),
                    "tail_s": float(tail_s[rank]),
                    "update_s": float(update_s[k, rank]),
                }
            )
    return float(total_s.max()) + truth.exchange_s


def manifest(truth: Truth) -> dict[str, Any]:
    places = [{"member": k, "host": "here", "device": f"cpu-{k}"} for k in range(truth.ranks)]
    return {
        "format": 2,
        "policy": truth.policy,
        "stages": stage_entries(make_policy(truth.policy)),
        "mode": truth.mode,
        "allow": ["interval", "moves", "order", "samples", "share"],
        "global_batch": truth.batch,
        "micro_batch": 1,
        "accumulation": 1,
        "decide_every": EVERY,
        "drift": truth.drift,
        "samples": truth.rounds * truth.batch,
        "sample_bytes": 0.0,
        "shards": 32,
        "samples_target": truth.rounds * truth.batch,
        "members": places,
        **truth.manifest,
    }
