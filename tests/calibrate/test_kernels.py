"""The CUDA kernels: every one compiles for every generation, and computes what its plain twin computes.

There is no GPU here, so the very sources are run on the CPU (cuda_on_host.h), where the meaning of each
machine instruction and its fragment layout are written down once more from the PTX ISA.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest

from equipoise.calibrate.device import nvrtc
from equipoise.calibrate.device.libraries import LibraryMissingError, load_library
from equipoise.calibrate.measure.tensor import hopper_kernel
from equipoise.calibrate.measure.verify import operands, to_bits
from tests.calibrate import fakes as calibrate_fakes
from tests.oracles import gpu_kernels as naive_kernels

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
DEFINED = re.compile(
    r'extern "C" __global__ void (?:__launch_bounds__\(\d+\) )?(\w+)|TENSOR_KERNEL\((\w+), mma|'
    r"WARPGROUP_KERNEL\((\w+), wgmma"
)


@pytest.fixture(scope="module")
def compiler() -> str:
    """NVRTC's version; the tests that compile are skipped without it."""
    try:
        return nvrtc.version()
    except LibraryMissingError as error:
        pytest.skip(str(error))


def kernel_names(file: str) -> list[str]:
    text = (nvrtc.KERNELS / f"{file}.cu").read_text()
    found = ["".join(names) for names in DEFINED.findall(text)]
    return [name for name in found if name not in ("NAME", "__launch_bounds__")]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("file", nvrtc.SOURCES)
def test_every_kernel_compiles_to_machine_code(compiler: str, file: str, architecture: str) -> None:
    if file in nvrtc.ONE_ARCHITECTURE and architecture != "sm_90":
        with pytest.raises(nvrtc.CompileError, match=f"{file}.cu: is for sm_90a alone, not for {architecture}"):
            nvrtc.cubin(file, architecture)
        return
    image = nvrtc.cubin(file, architecture)
    assert image[:4] == b"\x7fELF"
    names = kernel_names(file)
    assert names
    for name in names:
        absent = {"sm_80": ("tensor_fp8", "tensor_fp64_wide"), "sm_100": ("tensor_fp64_wide",)}  # fp8 came with sm_89
        expected = name not in absent.get(architecture, ())
        assert (f".text.{name}\0".encode() in image) == expected, name


def test_a_missing_library_is_one_line() -> None:
    with pytest.raises(LibraryMissingError, match="libnosuchthing was not found: install it") as error:
        load_library("nosuchthing", ("libnosuchthing.so.9",), "install it")
    assert "\n" not in str(error.value)


ON_THE_HOST = """
import json, sys
import numpy as np
from ctypes import c_double, c_float, c_int, c_longlong, c_uint
from equipoise.calibrate.device.cuda import Buffer, Device
device = Device(0)
request = json.loads(sys.argv[1])
make = {"f": c_float, "d": c_double, "i": c_int, "l": c_longlong, "u": c_uint}
results = []
for r in request:
    buffers, arguments = [], []
    for kind, value in r["arguments"]:
        if kind == "in":
            array = np.array(value[1], value[0])
            arguments.append(Buffer(array.nbytes).write(array))
        elif kind == "out":
            out = Buffer(value[1] * np.dtype(value[0]).itemsize).fill(0x7FC00000)
            buffers.append((out, value))
            arguments.append(out)
        else:
            arguments.append(make[kind](value))
    device.launch(device.kernel(r["file"], r["name"]), r["blocks"], r["threads"], arguments)
    device.wait(device.stream)
    results.append([b.read(dtype, count).astype(float).tolist() for b, (dtype, count) in buffers])
print(json.dumps(results))
"""


def launches(requests: list[dict[str, object]]) -> list[list[float]]:
    """Run kernels on the host; the output of each."""
    code = ON_THE_HOST.replace("sys.argv[1]", "sys.stdin.readline()")
    env = calibrate_fakes.environment(calibrate_fakes.cuda())
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(requests), env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return [outputs[0] for outputs in json.loads(done.stdout)]


def test_streams_equal_their_twins(compiler: str) -> None:
    random = np.random.default_rng(2)
    b, c = (random.standard_normal(4 * 777).astype(np.float32).tolist() for _ in range(2))
    source, other, out = ["in", ["float32", b]], ["in", ["float32", c]], ["out", ["float32", len(b)]]
    sums = ["out", ["float32", 160]]
    shape = {"file": "bandwidth", "blocks": 5, "threads": 32}
    copied, summed, added = launches(
        [
            {**shape, "name": "copy", "arguments": [source, out, ["l", 777]]},
            {**shape, "name": "read", "arguments": [source, sums, ["l", 777]]},
            {**shape, "name": "triad", "arguments": [source, other, out, ["f", 3.0], ["l", 777]]},
        ]
    )
    assert copied == naive_kernels.copy(b)
    assert summed == pytest.approx(naive_kernels.read(b, 5, 32, 4), rel=1e-5, abs=1e-5)
    assert added == pytest.approx(naive_kernels.triad(b, c, 3.0), rel=1e-6, abs=1e-6)


def test_multiply_add_chains_equal_their_twins(compiler: str) -> None:
    shape = {"file": "arithmetic", "blocks": 2, "threads": 64}
    a, b = (naive_kernels.half_bits(v) * 0x10001 for v in (0.75, -1.5))
    start = naive_kernels.half_bits(3.0) << 16 | naive_kernels.half_bits(-7.0)
    single, double, halves = launches(
        [
            {**shape, "name": "fma_fp32", "arguments": [["out", ["float32", 128]], ["f", 0.5], ["f", 2.0], ["i", 7]]},
            {**shape, "name": "fma_fp64", "arguments": [["out", ["float64", 128]], ["d", 0.3], ["d", 1.1], ["i", 9]]},
            {
                **shape,
                "name": "fma_fp16",
                "arguments": [["out", ["float16", 128 * 16]], ["u", a], ["u", b], ["u", start], ["i", 6]],
            },
        ]
    )
    assert single == pytest.approx(naive_kernels.fma(128, 64, 0.5, 2.0, 7), rel=1e-6)
    assert double == pytest.approx(naive_kernels.fma(128, 64, 0.3, 1.1, 9), rel=1e-12)
    chains = [naive_kernels.fma_halves(start + k, 0.75, -1.5, 6) for k in range(8)]
    assert halves == [value for _ in range(128) for pair in chains for value in pair]


def test_tensor_products_equal_their_twins(compiler: str) -> None:
    requests, wanted = [], []
    for precision, dtype in (("fp16", "uint16"), ("bf16", "uint16"), ("tf32", "uint32"), ("fp8", "uint8")):
        k = {"fp16": 16, "bf16": 16, "tf32": 8, "fp8": 32}[precision]
        a, b = operands(k)
        words = [to_bits(a, precision).ravel().tolist(), to_bits(np.ascontiguousarray(b.T), precision).ravel().tolist()]
        inputs = [["in", [dtype, w]] for w in words]
        out = ["out", ["float32", 4 * 128]]
        requests.append(
            {
                "file": "tensor",
                "name": f"tensor_{precision}",
                "blocks": 2,
                "threads": 64,
                "arguments": [*inputs, out, ["i", 5]],
            }
        )
        wanted.append(np.ravel(naive_kernels.matrix_product(a.tolist(), b.tolist(), 5 * 4)).tolist() * 4)
    a, b = operands(4, rows=8)
    inputs = [["in", ["float64", m.ravel().tolist()]] for m in (a, b.T)]
    requests.append(
        {
            "file": "tensor",
            "name": "tensor_fp64",
            "blocks": 1,
            "threads": 96,
            "arguments": [*inputs, ["out", ["float64", 3 * 64]], ["i", 2]],
        }
    )
    wanted.append(np.ravel(naive_kernels.matrix_product(a.tolist(), b.tolist(), 2 * 4)).tolist() * 3)
    a, b = operands(16)
    inputs = [["in", ["float64", m.ravel().tolist()]] for m in (a, b.T)]
    requests.append(
        {
            "file": "tensor",
            "name": "tensor_fp64_wide",
            "blocks": 2,
            "threads": 64,
            "arguments": [*inputs, ["out", ["float64", 4 * 128]], ["i", 3]],
        }
    )
    wanted.append(np.ravel(naive_kernels.matrix_product(a.tolist(), b.tolist(), 3 * 4)).tolist() * 4)
    assert launches(requests) == wanted


WARPGROUP_WORDS = {"fp16": "uint16", "bf16": "uint16", "tf32": "uint32", "fp8": "uint8"}


@pytest.fixture(scope="module")
def warpgroup_products(compiler: str) -> dict[str, list[float]]:
    """What each precision's kernel gives; in one process, which compiles them all at once."""
    requests: list[dict[str, object]] = []
    for precision, dtype in WARPGROUP_WORDS.items():
        kernel = hopper_kernel(precision)
        rows, columns, k = kernel.shape
        a, b = operands(k, rows, columns)
        encoded = (to_bits(a, precision), to_bits(np.ascontiguousarray(b.T), precision))
        inputs = [["in", [dtype, words.ravel().tolist()]] for words in encoded]
        out = ["out", ["float32", 2 * rows * columns]]
        shape = {"file": kernel.file, "name": kernel.name, "blocks": 1, "threads": 256}
        requests.append({**shape, "arguments": [*inputs, out, ["i", 2]]})
    return dict(zip(WARPGROUP_WORDS, launches(requests), strict=True))


@pytest.mark.parametrize("precision", WARPGROUP_WORDS)
def test_warpgroup_products_equal_their_twins(warpgroup_products: dict[str, list[float]], precision: str) -> None:
    kernel = hopper_kernel(precision)
    rows, columns, k = kernel.shape
    a, b = operands(k, rows, columns)
    product = naive_kernels.matrix_product(a.tolist(), b.tolist(), 2 * kernel.adds)
    assert warpgroup_products[precision] == np.ravel(product).tolist() * 2
