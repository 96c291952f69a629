"""Plain-Python twins of the CUDA kernels: one loop per thread, element by element, as slow as it is clear."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np


def copy(source: Sequence[float]) -> list[float]:
    """What `copy` leaves in its target."""
    return list(source)


def triad(b: Sequence[float], c: Sequence[float], scalar: float) -> list[float]:
    """b + scalar * c, element by element."""
    return [p + scalar * q for p, q in zip(b, c, strict=True)]


def read(source: Sequence[float], blocks: int, threads: int, unroll: int) -> list[float]:
    """The sum of each thread's quadruples: blocks take tiles of unroll * threads quadruples in turn."""
    sums = [0.0] * (blocks * threads)
    for tile, start in enumerate(range(0, len(source) // 4, unroll * threads)):
        for quadruple in range(start, min(start + unroll * threads, len(source) // 4)):
            for element in source[4 * quadruple : 4 * quadruple + 4]:
                sums[tile % blocks * threads + quadruple % threads] += element
    return sums


def fma(threads: int, block: int, a: float, b: float, iterations: int, chains: int = 8) -> list[float]:
    """Each thread's sum of its chains; chain c of a thread starts at its lane plus c."""
    results = []
    for thread in range(threads):
        total = 0.0
        for chain in range(chains):
            x = float(thread % block % 32 + chain)
            for _ in range(iterations):
                x = x * a + b
            total += x
        results.append(total)
    return results


def half(bits: int) -> float:
    """IEEE half precision, by its fields."""
    sign = -1.0 if bits >> 15 else 1.0
    exponent, mantissa = bits >> 10 & 31, bits & 1023
    if exponent == 31:
        return sign * float("inf") if mantissa == 0 else float("nan")
    return sign * (mantissa * 2.0**-24 if exponent == 0 else (1024 + mantissa) * 2.0 ** (exponent - 25))


def half_bits(value: float) -> int:
    """The half nearest to `value`, by Python's own conversion."""
    return int(struct.unpack("<H", struct.pack("<e", value))[0])


def fma_halves(start: int, a: float, b: float, iterations: int) -> tuple[float, float]:
    """One chain of `fma_fp16` on the pair of halves packed in `start`, rounded at every step."""
    results = []
    for bits in (start & 0xFFFF, start >> 16):
        x = half(bits)
        for _ in range(iterations):
            x = half(half_bits(x * a + b))
        results.append(x)
    return results[0], results[1]


def matrix_product(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], times: int) -> list[list[float]]:
    """A @ B added `times` times, by the three loops of the definition."""
    inner = len(b)
    return [[times * sum(row[k] * b[k][column] for k in range(inner)) for column in range(len(b[0]))] for row in a]


def encode(value: float, precision: str) -> int:
    """A value exact in the format, as its bits: sign, biased exponent and mantissa."""
    exponent_bits, mantissa_bits = {"fp16": (5, 10), "bf16": (8, 7), "tf32": (8, 23), "fp8": (4, 3)}[precision]
    if value == 0.0:
        return 0
    mantissa, exponent = np.frexp(abs(value))  # value = mantissa * 2^exponent, mantissa in [0.5, 1)
    biased = int(exponent) - 1 + 2 ** (exponent_bits - 1) - 1
    fraction = int((mantissa * 2 - 1) * 2**mantissa_bits)
    return (value < 0) << (exponent_bits + mantissa_bits) | biased << mantissa_bits | fraction
