"""The noise of steps: what was drawn is found again, and what the command prints is a section of a scenario."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from equipoise.calibrate.fit.step_noise import fit_noise, read_worker_times
from equipoise.cli import main
from equipoise.sim.randomness import gpu_times, noise_key, noise_space, step_noise, step_noise_row
from equipoise.sim.scenario.model import Noise

STEPS, WORKERS = 4000, 16


def made(said: Noise, gpu_cov: float = 0.0) -> np.ndarray:
    """Times (steps, workers) as the simulator draws them."""
    found = step_noise(
        noise_key(1, "job"),
        said.step_cov or 0.0,
        said.lasting_share,
        said.lasting_steps,
        said.common_share,
        said.tail_chance,
        said.tail_factor,
    )
    rows, space = np.empty((STEPS, WORKERS)), noise_space(WORKERS)
    for step in range(STEPS):
        step_noise_row(found, step, np.int64(0), space, rows[step])
    return rows * gpu_times(5, {"node": WORKERS}, gpu_cov)


@pytest.mark.parametrize(
    "said",
    [
        Noise(step_cov=0.05),
        Noise(step_cov=0.05, lasting_share=0.8, lasting_steps=16),
        Noise(step_cov=0.03, common_share=0.3, gpu_cov=0.02),
        Noise(step_cov=0.04, lasting_share=0.5, lasting_steps=8, tail_chance=0.01, tail_factor=4.0),
    ],
)
def test_what_was_drawn_is_found_again(said: Noise) -> None:
    found = fit_noise(made(said, said.gpu_cov))
    assert found.step_cov == pytest.approx(said.step_cov, rel=0.06)
    assert found.lasting_share == pytest.approx(said.lasting_share, abs=0.08)
    if said.lasting_share:
        assert found.lasting_steps == pytest.approx(said.lasting_steps, rel=0.15)
    assert found.common_share == pytest.approx(said.common_share, abs=0.06)
    assert found.tail_chance == pytest.approx(said.tail_chance, abs=0.002)
    if said.tail_chance:
        assert found.tail_factor == pytest.approx(said.tail_factor, rel=0.05)
    assert found.gpu_cov == pytest.approx(said.gpu_cov, abs=0.01)


def test_the_command_prints_the_section_of_a_scenario(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times, file = made(Noise(step_cov=0.05, lasting_share=0.8))[:300, :4], tmp_path / "times.csv"
    lines = [f"w{w},{k},{times[k, w]}" for k in range(300) for w in range(4)]
    file.write_text("worker,step,seconds\n" + "\n".join(lines) + "\n")
    assert main(["calibrate", "fit-noise", str(file)]) == 0
    said = Noise.model_validate(yaml.safe_load(capsys.readouterr().out)["noise"])
    assert said.step_cov == pytest.approx(0.05, rel=0.2)
    assert said.lasting_share > 0.5
    file.write_text(file.read_text().replace("w1,3,", "w1,three,", 1))
    assert main(["calibrate", "fit-noise", str(file)]) == 2
    assert "times.csv:15: step: 'three' is not a whole number" in capsys.readouterr().err
    file.write_text("worker,seconds\n")
    assert main(["calibrate", "fit-noise", str(file)]) == 2
    assert "step: missing column" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("a,1_0,0.1", "2: step: '1_0' is not a whole number; write it without '_'"),
        ("a,1,-1", "2: seconds: -1 is not above 0"),
        ("a,1,0.1,5", "2: 4 values, but there are 3 columns"),
        ("a,1,0.1\nb,1,0.2\na,1,0.1", "4: step 1 of worker 'a' is listed twice"),
        ("a,1,0.1\n" + "b" * 200_000 + ",1,0.2", "3: not a table: field larger than field limit"),
    ],
)
def test_a_row_that_is_no_time_is_named(tmp_path: Path, rows: str, message: str) -> None:
    file = tmp_path / "times.csv"
    file.write_text(f"worker,step,seconds\n{rows}\n")
    with pytest.raises(ValueError, match=re.escape(f"{file}:{message}")):
        read_worker_times(file)
