"""Predictions of public measurements beside the checkout, on rows that the fit has not seen; skipped without them.

Bounds are of the first split of every data set, somewhat above what was reached; the tables hold all ten.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.sim.llm.fit import fit
from equipoise.study.validation.predict import KEEPS_SCORES, memory_score, predicted
from equipoise.study.validation.rows import Row, labels, partition, read_csv, seconds, stacked
from equipoise.study.validation.run import run
from equipoise.study.validation.score import relative_error
from equipoise.study.validation.sets import dense_llm, playbook, sailor, vtrain
from equipoise.study.validation.splits import SPLITS, bucket, fitted_half, fitted_tenth

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"

BUCKETS = [1, 0, 1, 1, 0, 0, 0, 0, 1, 1]

needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the public measurements are not beside the checkout")


def error(known: list[Row], asked: list[Row], **options: object) -> float:
    fitted = fit(stacked(known), seconds(known), labels(known), **options)  # type: ignore[arg-type]
    return relative_error(predicted(fitted, asked), seconds(asked))


def test_a_split_depends_on_key_and_number_alone() -> None:
    assert [bucket("llama3-8b", split, 2) for split in SPLITS] == BUCKETS


def test_an_unknown_data_set_is_named() -> None:
    with pytest.raises(ValueError, match="nothing: no such data set; allowed: dense-llm, jitter, nccl"):
        run("nothing", DATA)


@needs_data
@pytest.mark.shared_data
@pytest.mark.long
def test_dense_models_of_unseen_families() -> None:
    rows = dense_llm.read(DATA)
    assert (len(rows), len({r.family for r in rows})) == (266, 25)
    known, asked = partition(rows, lambda r: fitted_half(r.family, 3))
    assert error(known, asked) <= 0.05


@needs_data
@pytest.mark.shared_data
def test_shapes_have_the_parameters_that_a_source_prints() -> None:
    for text in read_csv(DATA / dense_llm.FILE):
        if text["source_repo"].startswith("mosaicml"):
            shape = dense_llm._shape(dense_llm.family_of(text["model"]), text)
            assert shape.parameters == int(text["notes"].split("params=")[1])


@needs_data
@pytest.mark.shared_data
def test_one_node_from_a_tenth_and_many_nodes_from_one() -> None:
    single, multi = vtrain.read_single(DATA), vtrain.read_multi(DATA)
    known, asked = partition(single, lambda r: fitted_tenth(r.key, 0))
    assert error(known, asked) <= 0.07
    half, _ = partition(single, lambda r: fitted_half(r.key, 0))
    assert error(half, multi) <= 0.11


@needs_data
@pytest.mark.shared_data
def test_another_model_and_more_nodes_of_the_playbook() -> None:
    known, asked = partition(playbook.read(DATA), playbook._fitted)
    assert error(known, asked) <= 0.09
    assert memory_score(known[::4], asked, playbook.MEMORY, 0, playbook.STATES).error <= 0.12


@needs_data
@pytest.mark.shared_data
def test_plans_on_grace_hopper() -> None:
    known, asked = partition(sailor.read(DATA), lambda r: fitted_half(r.key, 0))
    assert error(known, asked, priors=KEEPS_SCORES) <= 0.06
    assert memory_score(known, asked, sailor.MEMORY).error <= 0.03
