"""The command `post-train`, and wrong input of the section."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from equipoise.cli import main
from equipoise.exit_codes import OK, WRONG_INPUT

SCENARIO = "grpo-32b"


def test_the_answer_comes_first(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The best split in the first sentence, with its interval; one screen; the page has the picture."""
    page = tmp_path / "page.html"
    assert main(["post-train", SCENARIO, "--out", str(page)]) == OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Of 64 GPUs, 32 for rollouts and 32 for training are fastest with rollouts 1 step ahead")
    assert len(lines) <= 25
    assert "GPUs that roll out" in page.read_text()


def test_the_same_as_data(capsys: pytest.CaptureFixture[str]) -> None:
    """Every split, the best first; chances sum to 1; an interval holds its step."""
    assert main(["post-train", SCENARIO, "--format", "json"]) == OK
    found = json.loads(capsys.readouterr().out)
    splits = found["splits"]
    assert [s["step_s"] for s in splits] == sorted(s["step_s"] for s in splits)
    assert {s["rollout_gpus"] + s["trainer_gpus"] for s in splits if not s["colocated"]} == {64}
    assert sum(s["chance_best"] for s in splits) == pytest.approx(1.0)
    assert all(s["step_interval_s"][0] < s["step_s"] < s["step_interval_s"][1] for s in splits)
    assert "Qwen3 32B" in found["nearest_measurement"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("post_training.0.model=polcy", "did you mean 'policy'?"),
        ("post_training.0.gpus=65", "65 GPUs, the cluster has 64"),
        ("post_training.0.rollout.gpus=64", "leave none to train"),
        (
            "post_training.0.rollout.gpus=28",
            "36 GPUs that train are not a multiple of 8 (tp x cp x pp); rollout.gpus 8 would leave 56",
        ),
        ("workload.models.policy.transformer.config=llama3-405b", "do not fit on 4 GPUs"),
        ("post_training.0.samples=1000000", "64,000,000 responses a step, at most 1,000,000"),
        ("post_training.0.algorithm=dpo", "'dpo' generates nothing"),
        ("post_training.0.response.mean=5000", "is not below 'most', 4096"),
        ("post_training.0.critic=policy", "allowed with ppo"),
        ("workload.jobs=[{name: grpo, gpus: 64, duration: 60}]", "is the name of a job in workload.jobs, too"),
    ],
)
def test_wrong_input(change: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line with the key, what is wrong and what is allowed."""
    assert main(["run", SCENARIO, "--set", change]) == WRONG_INPUT
    error = capsys.readouterr().err
    assert said in error
    assert "post_training.0" in error
    assert len(error.splitlines()) == 1


def test_a_scenario_without_a_loop(capsys: pytest.CaptureFixture[str]) -> None:
    """It is said what is missing."""
    assert main(["post-train", "quickstart"]) == WRONG_INPUT
    assert "needs a section 'post_training'" in capsys.readouterr().err


def test_trainers_that_need_more_memory_than_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    """70B with ZeRO 1 over eight replicas of 4 GPUs: 2 + 2 + 4 bytes a parameter and more on each, 140 GB and more."""
    model = "workload.models.policy.transformer"
    changes = (f"{model}.config=llama3-70b", f"{model}.layout.pp=1")
    assert main(["post-train", SCENARIO, *(text for change in changes for text in ("--set", change))]) == OK
    assert "training needs" in capsys.readouterr().err


def test_a_split_that_does_not_fit_is_not_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """8 GPUs are one replica of 32B: 18 bytes a parameter over 8 are 74 GB, with activations 94.6 GB of 85."""
    response = "post_training.0.response={mean: 1600, cov: 2, most: 32768}"
    assert main(["post-train", SCENARIO, "--set", response]) == OK
    out = capsys.readouterr().out
    assert out.startswith("Of 64 GPUs, 48 for rollouts and 16 for training are fastest")
    assert "not shown: training needs more memory than a GPU has: 56 + 8" in out


def test_a_run_has_the_interval_of_its_loop(capsys: pytest.CaptureFixture[str]) -> None:
    """Of the step and of what follows from it: all are as far off as the step, 0.69 to 1.59 times."""
    assert main(["run", SCENARIO, "--set", "post_training.0.rollout.gpus=32", "--format", "json", "-q"]) == OK
    row = json.loads(capsys.readouterr().out)
    low, high = row["sure"]["step_factor_interval"]
    for name in ("post_training_step_s", "makespan_s", "cost_usd"):
        assert row["sure"]["intervals"][name] == pytest.approx([row[name] * low, row[name] * high])


def test_a_run_with_another_seed_runs_again(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The loop's job follows from the seed; the stored scenario has it, and is no changed input."""
    few = ("--set", "post_training.0.steps=3", "--out", str(tmp_path / "r"))
    assert main(["run", SCENARIO, "--seed", "4", *few]) == OK
    assert main(["rerun", str(tmp_path / "r")]) == OK
    assert "differs" not in capsys.readouterr().out


def test_sequences_of_any_length_suit_context_parallelism(capsys: pytest.CaptureFixture[str]) -> None:
    """1,365 tokens, three to a micro-batch of 4,096, are counted as 1,364 over four GPUs; 32 GPUs are two replicas."""
    same = "{mean: 1365, cov: 0, most: 4096}"
    changes = (f"response={same}", "prompt_tokens=0", "rollout.gpus=32")
    sets = [f"post_training.0.{text}" for text in changes] + ["workload.models.policy.transformer.layout.cp=4"]
    assert main(["post-train", SCENARIO, *(text for change in sets for text in ("--set", change))]) == OK
    assert "32 + 32" in capsys.readouterr().out


def test_storage_nodes_and_slow_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    """Nodes without GPUs change neither step nor price; at half the speed rollouts take twice as long, too."""

    def best(change: str) -> dict[str, float]:
        assert main(["post-train", SCENARIO, "--set", change, "--format", "json", "-q"]) == OK
        found: dict[str, float] = json.loads(capsys.readouterr().out)["splits"][0]
        return found

    node = "count: 8, gpus: 8, accelerator: h100_sxm, nic: 400 Gbit/s, nics: 8"
    plain = best("seed=1")
    assert best(f"cluster.nodes=[{{name: disks, count: 2, gpus: 0}}, {{{node}}}]") == plain
    slow = best("cluster.nodes.0.speed=0.5")
    assert slow["rollout_s"] == pytest.approx(2 * plain["rollout_s"])
    assert slow["training_s"] == pytest.approx(2 * plain["training_s"])
