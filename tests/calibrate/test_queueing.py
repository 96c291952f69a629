"""What is put on a GPU's streams so that the thing meant is what is timed, against the fake driver."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from equipoise.calibrate.device import nvrtc
from equipoise.calibrate.device.libraries import LibraryMissingError
from equipoise.calibrate.measure.shares import BLOCKS_PER_SM, WAVES
from equipoise.calibrate.measure.verify import chain, stations
from tests.calibrate import fakes as calibrate_fakes

SCRIPT = """
import json
from equipoise.calibrate.device import cuda
from equipoise.calibrate.measure import microbench
from equipoise.calibrate.measure import shares
from equipoise.calibrate.device.cuda import Buffer, CudaError

launched = []
launch = cuda.Device.launch

def noted(self, kernel, blocks, threads, arguments, stream=None):
    known = [a.pointer.value if isinstance(a, Buffer) else a.value for a in arguments]
    launched.append((blocks, threads, known, None if stream is None else stream.value))
    launch(self, kernel, blocks, threads, arguments, stream)

cuda.Device.launch = noted
device = cuda.Device(0)
found = {}

bench = microbench.Microbench(device, True)
bench._chase(2**22, 0.0)
alone = [known for blocks, threads, known, _ in launched if (blocks, threads) == (1, 1)]
found["chase"] = [known[2] for known in alone if len(known) == 4]  # the others hold the stream

for size in (2**16, 2**22):
    launched.clear()
    bench._bandwidth("read", size, 0.0)
    found[f"read {size}"] = sorted({blocks * threads for blocks, threads, known, _ in launched if len(known) == 3})

launched.clear()
both = shares.ShareBench(device, 2**20)
half = device.partition(8), cuda.DevicePartition(device, 8, complement=True)
shares._together(both, half, "memory", "memory", 0.02)
for name, part in zip(("mine", "other"), half):
    found[name] = sorted({tuple(known[:2]) for _, _, known, stream in launched if stream == part.stream.value})
found["parts"] = [part.sm_count for part in half]

target = Buffer(4096).fill(7)
copy = Buffer(4096)
launch(device, device.kernel("bandwidth", "copy"), 4, 64, [target, copy, cuda.c_size_t(256)])
device.wait(device.stream)
found["copied"] = sorted(set(copy.read("uint32", 1024).tolist()))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    try:
        nvrtc.version()
    except LibraryMissingError as error:
        pytest.skip(str(error))
    done = calibrate_fakes.python(SCRIPT, calibrate_fakes.cuda(), calibrate_fakes.nvml())
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_each_chase_goes_on_where_the_last_one_ended() -> None:
    lines, words, steps = 1000, 32, 70
    following, begins = chain(lines, words), stations(lines, words, steps)
    assert len(begins) == -(-lines // steps)
    for begin, end in pairwise(begins):
        at = begin
        for _ in range(steps):
            at = int(following[at])
        assert at == end
    assert len(stations(16, words, 70)) == 1


def test_a_chase_through_more_than_the_cache_never_walks_the_same_lines_twice_in_a_row(found: Any) -> None:
    """4096 lines are half a megabyte: walked again, they would be found in the L2 and not in memory."""
    starts = found["chase"]
    assert len(starts) > 5
    assert starts[:8] == stations(2**22 // 128, 32, 4096)
    assert all(a != b for a, b in pairwise(starts))


def test_a_small_read_has_no_more_threads_than_elements(found: Any) -> None:
    """Every thread writes its sum: 4 bytes for each 16 read at most, not a megabyte for 64 KiB."""
    assert found["read 65536"] == [2**16 // 16 // 4]  # each reads four
    assert found["read 4194304"] == [16 * 4 * 512]  # the whole device of 16 SMs


def test_neighbours_copy_arrays_of_their_own(found: Any) -> None:
    """Two copies of one array would read each other's lines from the L2."""
    assert found["parts"] == [8, 8]
    (mine,) = found["mine"]
    alone, beside = sorted(found["other"], key=lambda arrays: arrays != mine)
    assert alone == mine
    assert not set(mine) & set(beside)


def test_what_the_default_stream_does_is_there_before_another_stream_reads_it(found: Any) -> None:
    assert found["copied"] == [7]


@pytest.mark.parametrize("sm_count", [108, 132, 148])
def test_the_last_wave_of_blocks_distorts_no_share_by_much(sm_count: int) -> None:
    blocks = sm_count * BLOCKS_PER_SM * WAVES
    for part in range(8, sm_count + 1, 8):
        at_once = part * BLOCKS_PER_SM
        waves = -(-blocks // at_once)
        assert waves * at_once / blocks - 1.0 < 0.06, part
