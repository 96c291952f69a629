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

from equipoise.live.data.movement import DataPlane, DataView, FileReport
from equipoise.live.decide.window import Telemetry, measure
from equipoise.live.decide.world import LiveWorld
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
    """Another loader in the seam; keeps what was last wanted."""

    def __init__(self, sizes: Any, prefetch: int) -> None:
        self.sizes, self.prefetch, self.digest = sizes, prefetch, "x"
        self.size_bytes, self.store = np.full(len(sizes), 100.0), np.zeros(len(sizes), dtype=np.int64)
        self.wanted: list[int] = []

    def want(self, files: Any) -> None:
        self.wanted = list(files)

    def report(self) -> FileReport:
        nothing = np.zeros(len(self.sizes), dtype=np.bool_)
        return FileReport(0.0, [], nothing, nothing)

    def close(self) -> None:
        pass


def test_a_rank_without_samples_stands_in_with_one_of_its_last_file_and_fetches_no_other() -> None:
    sizes = np.full(4, 6)
    group = samplers(2, shuffle=False, files=Files(sizes, "x"))
    data = [Noted(sizes, prefetch=0) for _ in group]
    for d, s in zip(data, group, strict=True):
        DataPlane(d, s)
    seen = list[int]()
    draws = train_all(group, 1, seen)
    for sampler in group:
        sampler.schedule(RoundChange(1, shares=(BATCH, 0)))
    assert [next(d) for d in draws] == [[3, 4, 5, 6, 7, 8], [14]]
    assert data[1].wanted == [2]  # and not the epoch's first file, which the other rank has
    for sampler in group:
        sampler.finish()
    train_all(group, 9, seen, draws)
    assert group[0].deal is not None
    assert group[0].deal.left == 0


# -- what is decided -----------------------------------------------------------------------------------------


def observed(
    policy: str, files: list[tuple[int, int, int]], rates: Any, held: tuple[int, ...] = (), owners: Any = None
) -> Any:
    """One decision of a job of 2 ranks on 2 nodes that computes 100 samples/s each: (observation, change).

    `files` are (samples, bytes, store), rates[rank][store] in bytes/s, `held` in the cache of every node, `owners`
    the rank of each file (none: equal blocks).
    """
    made = LiveWorld(Options(global_batch=20), [RankPlace(m, f"host-{m}", f"d{m}") for m in range(2)])
    sizes, size_bytes, store_of = (np.array(column) for column in zip(*files, strict=True))
    made.deal = EpochSplit.whole(np.arange(sizes.sum()), len(files), owners, 2, sizes=sizes)
    made.shares = np.array([10, 10])
    made.data = DataView(size_bytes.astype(np.float64), sizes, store_of)
    view, stall_s = made.data, [0.0, 0.0]
    reports: Floats = np.zeros((2, view.length))
    for rank in range(2):
        for store in range(view.stores):
            reports[rank, 1 + 4 * store :][:4] = (1e6, 1e6 / rates[rank][store], 0.0, 1)
        reports[rank, 1 + 4 * view.stores :] = 2.0 * np.isin(np.arange(len(files)), held)
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
    entries = []
    for k in range(5):
        own = range(12 * k, 12 * k + 12)
        samples = {f"{n:02d}": {"x.f32": values[n].tobytes(), "cls": b"%d" % (n % 10)} for n in own}
        content = tar_of(samples)
        (tmp_path / "store" / f"{k}.tar").write_bytes(content)
        entries.append({"url": f"{k}.tar", "nsamples": 12, "filesize": len(content)})
    (tmp_path / "store" / "index.json").write_text(json.dumps({"shardlist": entries}))
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
