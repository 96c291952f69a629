"""Learns an order of the queue and writes it as a policy file: python docs/learn.py SCENARIO.yaml POLICY.yaml

Evolution strategies (Salimans et al. 2017) on the weights of the stage `linear`, with runs in two processes. Seeds
from 1,000 on are for training; docs/learning.md judges on others.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import gymnasium
import numpy as np

from equipoise.gym import SchedulingEnv
from equipoise.policies.baselines.linear import FEATURES, Linear
from equipoise.policies.contract import Policy
from equipoise.policies.record.export import ExportedPolicy, write_policy

PAIRS, SEEDS, SPREAD, RATE = 6, 2, 0.3, 0.4


def episodes(envs: gymnasium.vector.AsyncVectorEnv, weights: np.ndarray, seeds: list[int]) -> np.ndarray:
    """Sum of rewards (environments,) of one run in each, that always starts the possible job of highest score."""
    seen, _ = envs.reset(seed=seeds)
    total, over = np.zeros(len(seeds)), np.zeros(len(seeds), dtype=bool)
    while not over.all():
        score = np.einsum("ejf,ef->ej", seen["jobs"], weights)
        score = np.where(seen["mask"][:, :-1] > 0, score, -np.inf)
        action = np.where(np.isfinite(score).any(axis=1), score.argmax(axis=1), score.shape[1])
        seen, reward, ended, _, _ = envs.step(action)
        total += np.where(over, 0.0, reward)
        over |= ended
    return total


def learn(scenario: str, seconds: float, processes: int = 2) -> Linear:
    """The stage after training for this long."""
    makers = [lambda: SchedulingEnv(scenario)] * processes
    envs = gymnasium.vector.AsyncVectorEnv(makers)
    dice, until_s, seed = np.random.default_rng(0), time.perf_counter() + seconds, 1000
    mean = np.array(Linear().weights)
    while time.perf_counter() < until_s:
        noise = dice.normal(size=(PAIRS, len(FEATURES)))
        tried = mean + SPREAD * np.concatenate((noise, -noise))
        gain = np.zeros(len(tried))
        for _ in range(SEEDS):  # all of a generation on the same runs
            for k in range(0, len(tried), processes):
                gain[k : k + processes] += episodes(envs, tried[k : k + processes], [seed] * processes)
            seed += 1
        rank = gain.argsort().argsort() / (len(gain) - 1) - 0.5
        mean = mean + RATE * (rank[:PAIRS] - rank[PAIRS:]) @ noise / PAIRS
        print(f"{seed - 1000:4d} runs: {-gain.mean() / SEEDS:.1f} h, {np.round(mean, 2).tolist()}", flush=True)
    envs.close()
    return Linear(tuple(float(weight) for weight in np.round(mean, 3)))


if __name__ == "__main__":
    case, target, *given = sys.argv[1:]
    stage = learn(case, float(given[0]) if given else 600.0)
    write_policy(ExportedPolicy(Policy(f"linear(weights={list(stage.weights)})", (stage,))), Path(target))
