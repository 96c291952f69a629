"""The fits on public measurements of real GPUs, beside the checkout; skipped where they are not there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.bench import calibrate_public_data as public

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"

pytestmark = [
    pytest.mark.shared_data,
    pytest.mark.skipif(not DATA.is_dir(), reason="the public measurements are not beside the checkout"),
]


def test_all_reduce_times_of_sizes_not_seen() -> None:
    size, error, naive = public.all_reduce_errors(DATA / "comm" / "nccl_aiconfigurator.csv.gz")
    assert len(error) > 500
    assert np.median(error[size >= public.FROM_BYTES]) <= 0.05
    assert np.median(error) <= 0.20
    assert np.median(naive) > 0.5, "peak bandwidth alone is far off"


@pytest.mark.parametrize("ranks", ["2", "4", "8"])
def test_all_reduce_times_beyond_both_ends(ranks: str) -> None:
    below, above = public.beyond_the_ends(DATA / "comm" / "nccl_aiconfigurator.csv.gz", ranks)
    assert np.median(below) <= 0.05
    assert np.median(above) <= 0.06


@pytest.mark.long
def test_matrix_products_of_shapes_not_seen() -> None:
    found = public.gemm_errors(DATA / "kernels" / "gemm_aiconfigurator.csv.gz", parts=3)
    assert len(found) >= 5
    for key, (folds, few, peak) in found.items():
        assert np.median(folds) <= 0.12, key
        assert np.median(few) <= 0.20, key
        assert np.median(peak) > 0.3, key


def test_shares_of_a_gpu_with_one_number_per_workload() -> None:
    path = DATA / "colocation" / "miso_mig_iteration_times.csv"
    fitted, held_out, proportional = public.share_errors(path)
    assert np.median(fitted) <= 0.12
    assert np.median(held_out) <= 0.12
    assert np.median(proportional) > 0.5
