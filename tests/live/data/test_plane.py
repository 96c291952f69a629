"""The data plane: the stages of the simulator decide what is fetched by whom, and every sample counts once."""

from __future__ import annotations

import collections
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("fsspec")

from equipoise.live.data.index import Shard, main
from equipoise.live.data.plane import HEAD, DataPlane, packed
from equipoise.live.data.view import DataView
from equipoise.live.decide.window import Telemetry, measure
from equipoise.live.decide.world import UNBOUNDED, LiveWorld
from equipoise.live.group.places import RankPlace
from equipoise.live.options import Options
from equipoise.live.train.change import RoundChange
from equipoise.live.train.epoch_split import EpochSplit
from equipoise.live.train.sampler import Files, ShareSampler
from equipoise.policies.contract import refine
from equipoise.policies.observation import Floats
from equipoise.policies.registry import make_policy
from tests.live.data.store import tar_of

SIZES = np.array([7, 3, 12, 1, 9, 5, 8, 4], dtype=np.int64)
BATCH = 6


def samplers(ranks: int, shuffle: bool = True, files: Files | None = None) -> list[ShareSampler]:
    files = files or Files(SIZES, "these")
    total = int(files.sizes.sum())
    return [
        ShareSampler(total, rank=r, ranks=ranks, global_batch=BATCH, shuffle=shuffle, files=files) for r in range(ranks)
    ]


Draws = list[Iterator[list[int]]]


def train_all(group: list[ShareSampler], rounds: int, seen: list[int], draws: Draws | None = None) -> Draws:
    draws = draws or [iter(s) for s in group]
    for _ in range(rounds):
        indices = [next(d, None) for d in draws]
        if indices[0] is None:
            break
        for sampler, drawn in zip(group, indices, strict=True):
            assert drawn is not None
            current = sampler.current()
            assert current is not None
            seen += drawn[: len(current.indices)]
            sampler.finish()
            sampler.commit()
    return draws


# -- dealing files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_every_sample_once_through_moves_orders_a_smaller_group_and_a_resume(seed: int) -> None:
    rng = np.random.default_rng(seed)
    group, seen = samplers(3), list[int]()
    draws = train_all(group, 2, seen)
    deal = group[0].deal
    assert deal is not None
    pieces = [p.id for queue in deal.queues() for p in queue]
    moves = tuple((int(p), int(rng.integers(3))) for p in rng.permutation(pieces)[:3])
    change = RoundChange(group[0].drawn, shares=(1, 4, 1), moves=moves, order=tuple(rng.permutation(pieces).tolist()))
    for sampler in group:
        sampler.schedule(change)
    train_all(group, 2, seen, draws)
    state = json.loads(json.dumps(group[0].state()))
    smaller = samplers(2)
    for sampler in smaller:
        sampler.load(state)
    train_all(smaller, 100, seen)
    assert collections.Counter(seen) == collections.Counter(range(int(SIZES.sum())))


def test_a_rank_reads_file_by_file_and_the_order_of_an_epoch_is_its_own() -> None:
    orders = []
    for epoch in range(2):
        (sampler,) = samplers(1)
        sampler.set_epoch(epoch)
        read = [i for batch in sampler for i in batch]
        files = np.searchsorted(np.cumsum(SIZES), read, side="right")
        runs = files[np.flatnonzero(np.diff(files, prepend=-1))]
        assert sorted(runs) == list(range(len(SIZES)))  # no file is opened twice
        orders.append((runs.tolist(), read))
    assert orders[0][0] != orders[1][0]
    assert orders[0][1] != sorted(orders[0][1])


def test_a_checkpoint_of_other_files_is_refused() -> None:
    (sampler,) = samplers(1)
    state = sampler.state()
    (other,) = samplers(1, files=Files(SIZES, "those"))
    with pytest.raises(ValueError, match="files of these is not allowed, the job has those"):
        other.load(state)


# -- what is fetched -----------------------------------------------------------------------------------------


class Noted:
    """Stands for a data set and its fetcher; keeps what was last wanted."""

    def __init__(self, sizes: Any, prefetch: int) -> None:
        self.prefetch, self.cache_bytes, self._ends = prefetch, 10**6, np.cumsum(sizes)
        self.shards = [Shard(f"{k}.tar", int(n), 100, None, 0) for k, n in enumerate(sizes)]
        self.wanted: tuple[list[int], list[int], int] = ([], [], 0)

    def start(self) -> Any:
        return self

    def want(self, now: list[int], ahead: list[int], quota: int, later: set[int] | None) -> None:
        self.wanted = (now, ahead, quota)

    def shards_of(self, indices: Any) -> list[int]:
        return np.searchsorted(self._ends, indices, side="right").tolist()  # type: ignore[no-any-return]


def test_a_rank_without_samples_stands_in_with_one_of_its_last_file_and_fetches_no_other() -> None:
    sizes = np.full(4, 6)
    group = samplers(2, shuffle=False, files=Files(sizes, "x"))
    data = [Noted(sizes, prefetch=0) for _ in group]
    for d, s in zip(data, group, strict=True):
        DataPlane(d, s, lambda: 1)  # type: ignore[arg-type]
    seen = list[int]()
    draws = train_all(group, 1, seen)
    for sampler in group:
        sampler.schedule(RoundChange(1, shares=(BATCH, 0)))
    assert [next(d) for d in draws] == [[3, 4, 5, 6, 7, 8], [14]]
    assert data[1].wanted[0] == [2]  # and not the epoch's first file, which the other rank has
    for sampler in group:
        sampler.finish()
    train_all(group, 9, seen, draws)
    assert group[0].deal is not None
    assert group[0].deal.left == 0


def test_a_cache_too_small_for_the_ranks_on_a_node_is_refused() -> None:
    (sampler,) = samplers(1)
    noted = Noted(SIZES, prefetch=1)
    noted.cache_bytes = 399
    with pytest.raises(ValueError, match="cache_bytes: 399 is too small, 2 ranks"):
        DataPlane(noted, sampler, lambda: 2)  # type: ignore[arg-type]


# -- what is decided -----------------------------------------------------------------------------------------


def observed(
    policy: str, files: list[tuple[int, int, int]], rates: Any, held: tuple[int, ...] = (), owners: Any = None
) -> Any:
    """One decision of a job of 2 ranks on 2 nodes that computes 100 samples/s each: (observation, change).

    `files` are (samples, bytes, store), rates[rank][store] in bytes/s, `held` in the cache of every node, `owners`
    the rank of each file (none: equal blocks).
    """
    shards = [Shard(f"{k}.tar", n, size, None, store) for k, (n, size, store) in enumerate(files)]
    made = LiveWorld(Options(global_batch=20), [RankPlace(m, f"host-{m}", f"d{m}") for m in range(2)])
    sizes = np.array([s.samples for s in shards])
    made.deal = EpochSplit.whole(np.arange(sizes.sum()), len(files), owners, 2, sizes=sizes)
    made.shares = np.array([10, 10])
    made.data = DataView(shards)
    view, stall_s = made.data, [0.0, 0.0]
    reports: Floats = np.zeros((2, view.length))
    for rank in range(2):
        for store in range(view.stores):
            reports[rank, HEAD + 4 * store :][:4] = (1e6, 1e6 / rates[rank][store], 0.0, 1)
        flags = np.isin(np.arange(len(files)), held)
        reports[rank, HEAD + 4 * view.stores :] = np.concatenate([packed(flags), packed(flags & False)])
        stall_s[rank] = 0.2 if min(rates[rank]) < 1e5 else 0.0
        reports[rank, 0] = 5 * stall_s[rank]
    view.update(reports, ["host-0", "host-1"])
    rows = np.array([[[10, stall_s[r], 0.1, 0.01, 0.0, np.nan, np.nan]] * 5 for r in range(2)])
    made.telemetry = Telemetry(measure(rows, [True] * 5), np.ones(2), *(np.full(2, np.nan),) * 2, 50.0, 7)
    decision = refine(make_policy(policy), made.observe(), {})
    made.apply(decision.plan)
    return decision.observation, made.change


EQUAL = [(10, 10_000, 0)] * 40
SLOW_AND_FAST = ((1e6,), (2e4,))  # rank 1 reads 20 samples/s and computes 100


def test_waiting_for_shards_is_told_from_computing_as_in_a_simulation() -> None:
    seen, _ = observed("s1+s2", EQUAL, SLOW_AND_FAST)
    workers, paths = seen.workers, seen.paths
    assert workers.step_s == pytest.approx([0.1, 0.1])
    assert workers.input_samples_per_s == pytest.approx([1000.0, 20.0])
    assert workers.capacity_samples_per_s == pytest.approx([100.0, 20.0])
    assert workers.response_s_per_sample == pytest.approx([0.01, 0.05])
    assert list(zip(paths.source, paths.target, paths.bytes_per_s, strict=True)) == [
        (2, 0, pytest.approx(1e6)),
        (2, 1, pytest.approx(2e4)),
    ]
    assert seen.nodes.gpus.tolist() == [1, 1, 0]
    assert (seen.shards.node == 2).all()
    assert not seen.shards.local.any()


def test_the_first_deal_is_at_once_what_a_slow_path_can_bear() -> None:
    seen, change = observed("s2(frozen=S213)", EQUAL, SLOW_AND_FAST)
    assert seen.workers.samples_max.tolist() == [UNBOUNDED, 3]  # 20 of 120 samples/s
    assert change.shares == (17, 3)
    seen, _ = observed("s2(frozen=S213)", EQUAL, SLOW_AND_FAST, held=(20, 21, 22))
    assert 3 < seen.workers.samples_max[1] < 10  # 30 samples of its own are here
    seen, _ = observed("s2(frozen=S213)", EQUAL, SLOW_AND_FAST, held=tuple(range(20, 40)))
    assert seen.workers.samples_max.tolist() == [UNBOUNDED] * 2


def test_late_shards_go_from_the_slow_path_to_the_fast_one() -> None:
    _, change = observed("s1+s2", EQUAL, SLOW_AND_FAST)
    assert change.shares is not None
    assert change.shares[0] > 10
    assert change.moves
    assert all(owner == 0 and piece >= 20 for piece, owner in change.moves)
    _, frozen = observed("s1(frozen=S113)+s2(frozen=S213)", EQUAL, SLOW_AND_FAST)
    assert frozen.moves == ()
    _, blind = observed("s1(frozen=S113)+s2(frozen=S211)", EQUAL, SLOW_AND_FAST)
    assert blind.moves == ()  # without measured paths nothing is late


def test_equal_paths_or_cached_shards_change_nothing() -> None:
    _, equal = observed("s1+s2", EQUAL, ((1e6,), (1e6,)))
    assert equal.is_empty()
    seen, cached = observed("s1+s2", EQUAL, ((1e6,), (1e6,)), held=tuple(range(40)))
    assert seen.shards.local.all()
    assert (seen.workers.input_samples_per_s == np.inf).all()
    assert cached.is_empty()


def test_the_last_samples_are_trained_on_where_they_are() -> None:
    """Rank 1 reads 20 samples/s and has one file left, the other's 20 files come to it too late."""
    files = [(10, 10_000, 0)] * 21

    def dealt(rates: Any) -> Any:
        seen, change = observed("s2", files, rates, owners=[0] * 20 + [1])
        return seen.workers.samples_max.tolist(), change.shares

    most, shares = dealt(SLOW_AND_FAST)
    assert most == [UNBOUNDED, 0]  # less than one in each of the 11 rounds
    assert shares == (20, 0)
    assert dealt(((1e6,), (1e6,)))[0] == [UNBOUNDED] * 2


def test_small_and_urgent_shards_are_fetched_first() -> None:
    files = [(10, 10_000 * (1 + 5 * (k % 4 == 1)), 0) for k in range(16)]
    for rate, large_first in ((1e5, True), (1e7, False)):  # there is no slack for it; there is for all
        _, change = observed("s1+s2", files, ((rate,), (rate,)))
        assert change.order is not None
        assert (change.order.index(5) < change.order.index(2)) == large_first
    _, frozen = observed("s1+s2(frozen=S212)", files, ((1e5,), (1e5,)))
    assert frozen.order is None


# -- real ranks ----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_script_of_the_page_trains(tmp_path: Path) -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "live-data.md"
    script = page.read_text().split("```python\n")[1].split("```")[0]
    for told, here in (
        ("s3://bucket/train", str(tmp_path / "store")),
        ("/local/cache", str(tmp_path / "cache")),
        ("512", "16"),
        ("epochs(10)", "epochs(2)"),
        ("num_workers=4", "num_workers=1"),
    ):
        assert told in script
        script = script.replace(told, here)
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "store").mkdir()
    values = np.random.default_rng(0).standard_normal((60, 64)).astype("<f4")
    for k in range(5):
        own = range(12 * k, 12 * k + 12)
        samples = {f"{n:02d}": {"x.f32": values[n].tobytes(), "cls": b"%d" % (n % 10)} for n in own}
        (tmp_path / "store" / f"{k}.tar").write_bytes(tar_of(samples))
    assert main([str(tmp_path / "store")]) == 0
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        str(tmp_path / "train.py"),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stderr
    assert "epoch 1: loss " in done.stdout


def test_a_rank_behind_a_slow_path_orders_its_queue_however_fast_the_others_path_is() -> None:
    """Rank 1 reads 20 samples/s and computes 100: most of its files come late, the small ones by less."""
    files = [(10, 10_000 * (1 + 5 * (k % 4 == 1)), 0) for k in range(16)]
    seen, change = observed("s2(frozen=S213)", files, SLOW_AND_FAST)
    assert (seen.shards.bytes > 0).all()
    assert change.order is not None
    own = [piece for piece in change.order if piece >= 8]
    assert own.index(13) == len(own) - 1, "60 kB behind those of 10 kB, though needed before two of them"


# -- what a rank tells ---------------------------------------------------------------------------------------
