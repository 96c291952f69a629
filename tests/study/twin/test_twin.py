"""The twin of a live run: recovered speeds, equal decisions, the column that made them part, the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from equipoise import cli
from equipoise.policies.contract import Policy, refine
from equipoise.policies.observation import writable
from equipoise.policies.record.export import ExportedPolicy, write_policy
from equipoise.policies.record.journal import append, read
from equipoise.policies.registry import make_policy
from equipoise.sim.scenario.tree import InputError
from equipoise.study.twin.compare import actions
from equipoise.study.twin.fit import measure
from equipoise.study.twin.record import read_run
from equipoise.study.twin.text import render
from equipoise.study.twin.twin import APART, Twin, twin
from tests.study.twin.twin_runs import Truth, write_run


def twin_of(truth: Truth, folder: Path) -> Twin:
    return twin(read_run(write_run(truth, folder)[0]))


# -- the same again ------------------------------------------------------------------------------------------


def test_without_noise_the_twin_is_the_run(tmp_path: Path) -> None:
    folder, slow_round = write_run(Truth(), tmp_path)
    found = twin(read_run(folder))
    first, second = found.measured.speeds
    assert first.begin == (0, slow_round)
    assert first.per_sample_s == pytest.approx((2e-3, 4e-3), rel=1e-9)
    assert (second.begin, second.per_sample_s) == ((0,), pytest.approx((2e-3,), rel=1e-9))
    assert found.measured.exchange_s == pytest.approx(2e-3)
    assert found.measured.fixed_samples * found.measured.reference_s == pytest.approx(1e-3)
    assert found.measured.step_cov == pytest.approx(0.0, abs=1e-9)
    assert max(window.error for window in found.windows) < 1e-6
    assert found.parted is None
    assert found.decisions_identical == len(found.windows) == len(found.run.points) > 15
    assert len({window.samples for window in found.windows}) > 3  # the shares did change
    assert found.replay_differences == ()


@pytest.mark.parametrize(
    "truth",
    [
        Truth(per_sample_s=(2e-3, 3e-3, 2.5e-3), slow_rank=2, batch=90),
        Truth(exchange_s=60e-3, slow_factor=1.5),  # s3 makes the interval longer
        Truth(policy="s2(mode=optimal)+s4", per_sample_s=(1e-3, 3.7e-3)),
        Truth(fixed_s=40e-3, per_sample_s=(2e-3, 3e-3)),
        Truth(drift=None),
    ],
    ids=["three ranks", "interval", "optimal", "much fixed", "drift unknown"],
)
def test_other_runs_without_noise(truth: Truth, tmp_path: Path) -> None:
    found = twin_of(truth, tmp_path)
    assert found.step_error_median < 1e-6
    assert found.parted is None
    assert len(found.windows) > 10
    if truth.exchange_s > 0.01:
        assert max(window.interval for window in found.windows) > 1


def test_with_noise_the_prediction_holds(tmp_path: Path) -> None:
    found = twin_of(Truth(step_cov=0.03), tmp_path)
    assert found.step_error_median < 0.05
    assert found.measured.step_cov == pytest.approx(0.03, rel=0.4)
    assert [len(speeds.begin) for speeds in found.measured.speeds] == [2, 1]


def test_a_window_that_is_far_off_says_why(tmp_path: Path) -> None:
    """The leading rank leaves each exchange 20 ms later than the other one: of rounds of 99 to 200 ms, above 5 %."""
    folder, _ = write_run(Truth(), tmp_path)
    path = folder / "rounds-0.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    later = [line | {"tail_s": line["tail_s"] + 0.02} if "round" in line else line for line in lines]
    path.write_text("".join(json.dumps(line) + "\n" for line in later))
    found = twin(read_run(folder))
    assert {window.why for window in found.windows} <= {APART, ""}
    assert "off by more than 5 % before decisions 1, 2, 3, " in render(found)
    assert found.slow[0].startswith("rank 0 is 2.00 times slower: compute")
    assert found.slow[0] in render(found)


def test_a_run_that_only_advised_keeps_its_shares(tmp_path: Path) -> None:
    """The twin of a run in which nothing was carried out carries nothing out, and still decides alike."""
    truth = Truth(mode="advise", policy="s2(epsilon=10)")
    folder, _ = write_run(truth, tmp_path)
    policy = make_policy("s2")
    journal = folder / "decisions-0.jsonl"
    entries, memory = list(read(journal)), policy.initial()
    journal.unlink()
    for entry in entries:
        decision = refine(policy, entry.decision.observation, memory)
        memory = decision.memory
        append(journal, decision)
    found = twin(read_run(folder, policy))
    assert {window.samples for window in found.windows} == {(48, 48)}
    assert found.step_error_median < 1e-6
    assert found.parted is None
    assert any("samples_per_step" in actions(p.entry.decision) for p in found.run.points)


def test_a_fixed_part_that_matters_is_found_without_being_measured(tmp_path: Path) -> None:
    """A run does not tell how much of computing is fixed; uneven shares do."""
    folder, _ = write_run(Truth(fixed_s=50e-3, slow_factor=3.0), tmp_path)
    for path in folder.glob("rounds-*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            if "round" in line:
                line["compute_s"] += line["update_s"]
                line["update_s"] = 0.0
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = measure(read_run(folder))
    assert found.fixed_samples * found.reference_s == pytest.approx(50e-3, rel=0.02)


# -- where decisions part ------------------------------------------------------------------------------------


def misled(folder: Path, policy: Policy, column: str, factor: float, since: int) -> None:
    """Rewrite a journal as if the run had measured a column of rank 1 otherwise, from decision `since` on."""
    journal = folder / "decisions-0.jsonl"
    entries = list(read(journal))
    journal.unlink()
    memory = policy.initial()
    for number, entry in enumerate(entries, start=1):
        o = entry.decision.observation
        if number >= since:
            values = writable(o.workers, column)
            values.flags.writeable = True
            values[1] *= factor
        decision = refine(policy, o, memory)
        memory = decision.memory
        append(journal, decision)


def test_the_column_that_parted_is_named(tmp_path: Path) -> None:
    folder, _ = write_run(Truth(policy="s2", slow_at_s=1e5, rounds=40), tmp_path)
    misled(folder, make_policy("s2"), "response_s_per_sample", 1.6, since=6)
    found = twin(read_run(folder))
    assert found.decisions_identical == 5
    assert found.parted is not None
    assert (found.parted.decision, found.parted.what) == (6, "samples_per_step")
    assert found.parted.columns == ("workers.response_s_per_sample",)
    because = "because workers.response_s_per_sample was different"
    assert f"decision 6 has another samples_per_step live, {because}" in render(found)


def test_what_a_stage_remembers_is_traced_to_the_column_behind_it(tmp_path: Path) -> None:
    """s1 smooths rates: a rate that was measured too low earlier still acts when it is right again."""
    policy = make_policy("s1+s2")
    truth = Truth(policy="s1+s2", per_sample_s=(3e-3, 2e-3), slow_at_s=1e5, rounds=60)
    folder, _ = write_run(truth, tmp_path)
    misled(folder, policy, "gradient_rate_per_s", 0.5, since=4)
    found = twin(read_run(folder))
    assert found.parted is not None
    assert "workers.gradient_rate_per_s" in found.parted.columns


def test_a_journal_that_does_not_replay_is_told(tmp_path: Path) -> None:
    folder, _ = write_run(Truth(rounds=40), tmp_path)
    found = twin(read_run(folder, make_policy("s1+s2+s3(eta=0.1)+s4")))
    assert found.replay_differences
    assert "are not reproduced" in render(found)
    assert found.replay_differences[0] in render(found)


# -- records -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(Truth(rounds=40), tmp_path_factory.mktemp("twin") / "run")[0]


def copied(record: Path, folder: Path, **changes: Any) -> Path:
    folder.mkdir()
    for path in record.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    if changes:
        path = folder / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


PLACES = [{"member": k, "host": "a", "device": "cuda-0"} for k in range(2)]
FIXED = [place | {"share": share, "share_fixed": True} for place, share in zip(PLACES, (0.4, 1.0), strict=True)]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"format": 1}, "format: 1"),
        ({"policy": None}, "has no decisions"),
        ({"mode": "observe"}, "has no decisions"),
        ({"accumulation": 4}, "accumulation"),
        ({"members": PLACES}, r"members: ranks that share a device \(cuda-0\) by turns .* allowed: fixed shares"),
        ({"members": [FIXED[0], FIXED[1] | {"share_fixed": False, "share": 0.5}]}, "in shares that may change"),
        ({"members": FIXED}, r"have 1\.4 of it slow each other.* allowed: .* of at most 1 together"),
        ({"members": [FIXED[0] | {"share": -0.4}, FIXED[1]]}, r"members\.0\.share: "),
        ({"stages": None}, "--policy"),
        ({"stages": [{"mine": {}}]}, "unknown stage 'mine'"),
        ({"global_batch": 0}, "global_batch"),
    ],
)
def test_runs_without_a_twin_are_refused(record: Path, tmp_path: Path, changes: Any, says: str) -> None:
    with pytest.raises(InputError, match=says) as wrong:
        twin(read_run(copied(record, tmp_path / "run", **changes)))
    assert len(wrong.value.lines) == 1


def test_a_run_of_two_levels_has_no_twin(record: Path, tmp_path: Path) -> None:
    folder = copied(record, tmp_path / "run")
    path = folder / "rounds-1.jsonl"
    path.write_text(path.read_text().replace('"round": 7,', '"round": 7, "near": true,'))
    with pytest.raises(InputError, match="two levels"):
        read_run(folder)


def test_damaged_records_are_refused(record: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"manifest\.json: No such file"):
        read_run(tmp_path / "nowhere")
    broken = copied(record, tmp_path / "json")
    (broken / "manifest.json").write_text("{")
    with pytest.raises(InputError, match="is not JSON"):
        read_run(broken)
    for number, (line, says) in enumerate(
        [("{\n", r"rounds-1\.jsonl:3: is not JSON"), ("[]\n", "neither a round nor an event")]
    ):
        folder = copied(record, tmp_path / str(number))
        lines = (folder / "rounds-1.jsonl").read_text().splitlines(keepends=True)
        (folder / "rounds-1.jsonl").write_text("".join([*lines[:2], line, *lines[2:]]))
        with pytest.raises(InputError, match=says):
            read_run(folder)
    twice = copied(record, tmp_path / "twice")
    (twice / "rounds-0.jsonl").write_text(2 * (twice / "rounds-0.jsonl").read_text())
    with pytest.raises(InputError, match="several runs in one folder"):
        read_run(twice)
    missing = copied(record, tmp_path / "missing")
    (missing / "rounds-1.jsonl").unlink()
    with pytest.raises(InputError, match=r"rounds-1\.jsonl: No such file"):
        read_run(missing)


def test_a_run_that_was_killed_has_a_twin(record: Path, tmp_path: Path) -> None:
    """Last lines are cut, and one rank wrote less than the other."""
    folder = copied(record, tmp_path / "run")
    for name, part in (("rounds-0.jsonl", 0.9), ("rounds-1.jsonl", 0.7), ("decisions-0.jsonl", 0.8)):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[: int(part * len(whole))])
    found = twin(read_run(folder))
    assert 20 < found.run.rounds < 30
    assert found.parted is None
    assert found.step_error_median < 1e-6


def test_a_lost_line_of_the_journal_costs_that_decision_only(tmp_path: Path) -> None:
    folder, slow_round = write_run(Truth(rounds=40, slow_at_s=1.6), tmp_path / "run")
    assert 12 < slow_round < 20
    lines = (folder / "decisions-0.jsonl").read_text().splitlines(keepends=True)
    (folder / "decisions-0.jsonl").write_text("".join(lines[:4] + lines[5:]))
    found = twin(read_run(folder))
    assert [window.decision for window in found.windows] == [1, 2, 3, 5, 6, 7, 8, 9]
    assert found.windows[3].first_round == 12
    assert found.parted is None
    assert found.step_error_median < 1e-6


# -- the command ---------------------------------------------------------------------------------------------


def test_the_command_for_machines_and_people(record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "scenario.yaml"
    assert cli.main(["twin", str(record), "--format", "json", "--scenario", str(out)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ranks"] == 2
    assert found["step_error_median"] < 1e-6
    assert found["decisions_identical"] == found["decisions"] == len(found["windows"])
    assert found["replay_equal"] is True
    assert found["parted"] is None
    assert found["measured"]["exchange_s"] == pytest.approx(2e-3)
    assert cli.main(["validate", str(out)]) == 0
    assert len(yaml.safe_load(out.read_text())["cluster"]["nodes"]) == 2
    capsys.readouterr()
    assert cli.main(["twin", str(record), "--tolerance", "0.05"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("The simulation of ")
    assert "All recorded decisions are reproduced" in text
    assert "4 ms per sample from round" in text


def test_the_command_takes_an_exported_policy_and_judges(
    record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "policy.yaml"
    write_policy(ExportedPolicy(make_policy("s1+s2+s3")), path)
    assert cli.main(["twin", str(record), "--policy", str(path), "--tolerance", "0.05"]) == 0
    assert cli.main(["twin", str(record), "--policy", "s2(damping=0.1)", "--tolerance", "0.05"]) == 5
    capsys.readouterr()
    for policy, says in (("no.yaml", "no.yaml: No such file"), ("s9", "unknown stage 's9'")):
        assert cli.main(["twin", str(record), "--policy", policy]) == 2
        assert says in capsys.readouterr().err
    assert cli.main(["twin", str(tmp_path / "none")]) == 2
    assert "manifest.json" in capsys.readouterr().err
