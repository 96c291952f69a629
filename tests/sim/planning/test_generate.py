"""Jobs from a description: what is asked for comes out, the same on one seed, with the waits of a plain queue."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
import yaml

from equipoise.cli import main
from equipoise.policies.registry import make_policy
from equipoise.sim.inputs import drawn_jobs
from equipoise.sim.loading.file import from_mapping
from equipoise.sim.run import run
from equipoise.sim.scenario.tree import InputError

LOGNORMAL = {"kind": "lognormal", "median": "1 h", "sigma": 1.6, "low": "60 s", "high": "5 d"}
MIX = {1: 45, 2: 15, 4: 15, 8: 17, 16: 5, 32: 2, 64: 1}


def described(pool: int = 400, length: str = "7 d", **kind: object):
    generate = {"length": length, "classes": [{"duration": LOGNORMAL, "gpus": MIX} | kind]}
    return from_mapping(
        {"schema_version": 1, "name": "g", "cluster": {"gpus": pool}, "workload": {"generate": generate}}
    )


def test_arrivals_durations_and_sizes_are_as_asked():
    jobs = drawn_jobs(described(length="100 d", rate="400/d"), 1)
    assert len(jobs) == pytest.approx(40_000, abs=4 * 200)
    gaps = np.diff(jobs.arrival_s)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.03)  # exponential
    assert np.percentile(jobs.duration_s, [50, 90]) == pytest.approx([3600, 3600 * np.exp(1.6 * 1.2816)], rel=0.04)
    assert (jobs.duration_s.min(), jobs.duration_s.max()) == (60.0, 432000.0)
    assert jobs.gpus.mean() == pytest.approx(sum(k * v for k, v in MIX.items()) / 100, rel=0.03)


def test_a_seed_gives_the_same_jobs_and_another_seed_others():
    scenario = described(rate="400/d")
    first, again, other = (drawn_jobs(scenario, seed) for seed in (1, 1, 2))
    assert first.digest() == again.digest() != other.digest()
    assert run(scenario, seed=1).identity != run(scenario, seed=2).identity


def test_a_class_does_not_change_what_another_draws():
    alone = drawn_jobs(described(rate="400/d", name="a"), 1)
    both = described(rate="400/d", name="a").model_dump(mode="json")
    classes = both["workload"]["generate"]["classes"]
    both["workload"]["generate"]["classes"] = [classes[0] | {"name": "b", "rate": 1e-3}, classes[0]]
    mixed = drawn_jobs(from_mapping(both), 1)
    mine = np.array(mixed.columns["class"].tolist()) == "a"
    assert mixed.duration_s[mine].tolist() == alone.duration_s.tolist()


def test_a_load_is_what_the_cluster_is_asked_for():
    scenario = described(load=0.8, length="800 d")
    jobs = drawn_jobs(scenario, 3)
    asked = float(jobs.gpus @ jobs.duration_s) / (400 * 800 * 86400)
    assert asked == pytest.approx(0.8, rel=0.03)


def test_days_and_bursts():
    day = {"kind": "diurnal", "swing": 0.8, "peak": "14 h", "weekend": 0.5}
    jobs = drawn_jobs(described(rate="4000/d", length="28 d", arrivals=day), 1)
    hour, weekday = (jobs.arrival_s // 3600) % 24, (jobs.arrival_s // 86400) % 7
    by_hour = np.bincount(hour.astype(int), minlength=24)
    assert by_hour[14] / by_hour[2] == pytest.approx(1.8 / 0.2, rel=0.15)
    by_day = np.bincount(weekday.astype(int))
    assert by_day[5:].mean() / by_day[:5].mean() == pytest.approx(0.5, rel=0.05)
    bursts = drawn_jobs(described(rate="4000/d", length="28 d", arrivals={"burst": 5, "within": "1 s"}), 1)
    assert len(bursts) == pytest.approx(28 * 4000, rel=0.03)
    gaps = np.diff(bursts.arrival_s)
    assert (gaps < 8).mean() == pytest.approx(0.8 + 0.2 * (1 - np.exp(-8 * 800 / 86400)), abs=0.02)


def test_arrivals_are_named_by_their_kind_alone():
    short, long = (described(rate="400/d", arrivals=given) for given in ("diurnal", {"kind": "diurnal"}))
    assert short == long
    with pytest.raises(InputError, match="did you mean 'diurnal'"):
        described(rate="400/d", arrivals="Diurnal")


def test_a_run_shows_waits_by_class_in_one_table(tmp_path, capsys):
    classes = [
        {"name": name, "rate": "60/d", "duration": {"kind": "pareto", "low": "1 h", "alpha": 3}, "gpus": {n: 1}}
        for name, n in (("small", 1), ("large", 4))
    ]
    data = {
        "schema_version": 1,
        "name": "g",
        "cluster": {"gpus": 8},
        "policy": "fifo",
        "workload": {"generate": {"length": "1 d", "classes": classes}},
    }
    (tmp_path / "g.yaml").write_text(yaml.safe_dump(data))
    assert main(["run", str(tmp_path / "g.yaml")]) == 0
    told = capsys.readouterr()
    lines = told.out.splitlines()
    first = next(k for k, line in enumerate(lines) if line.startswith("jobs ") and "waiting p50" in line)
    assert {line.split("  ")[0] for line in lines[first + 1 :]} == {"1 GPU", "4 GPUs", "small", "large"}
    assert not any("[" in line for line in lines)
    assert "sorted by arrival" not in told.err


def waits_by_hand(arrival_s, gpus, duration_s, pool: int) -> np.ndarray:
    """Strict first come first served on counted GPUs."""
    free, now, ends, waits = pool, 0.0, [], []
    for arrival, wanted, duration in zip(arrival_s, gpus, duration_s, strict=True):
        now = max(now, arrival)
        while ends and (ends[0][0] <= now or free < wanted):
            end, back = heapq.heappop(ends)
            now, free = max(now, end), free + back
        free -= wanted
        heapq.heappush(ends, (now + duration, wanted))
        waits.append(now - arrival)
    return np.array(waits)


def test_waits_are_those_of_a_plain_queue():
    scenario = described(320, rate="400/d")
    jobs = drawn_jobs(scenario, 5)
    waits = waits_by_hand(jobs.arrival_s, jobs.gpus, jobs.duration_s, 320)
    found = run(scenario, policy=make_policy("fifo"), seed=5).summary()
    for q in (50, 95, 99):
        assert found[f"queueing_p{q}_s"] == pytest.approx(float(np.percentile(waits, q)), rel=1e-9, abs=1e-6)


def test_classes_that_want_too_much_and_wrong_descriptions_are_refused():
    for kind, told in (
        ({"rate": "400/d", "gpus": {512: 1}}, "needs 512 GPUs, the cluster has 400"),
        ({"rate": "400/d", "load": 0.5}, "needs either 'rate' (e.g. 400/d) or 'load'"),
        ({"rate": "400/d", "duration": {"kind": "pareto", "sigma": 1.0}}, "kind pareto needs alpha"),
        ({"rate": "400 GB/s"}, "a rate of jobs is needed"),
    ):
        with pytest.raises(InputError) as raised:
            described(**kind)
        assert told in raised.value.lines[0]
