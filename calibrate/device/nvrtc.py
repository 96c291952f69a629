"""CUDA C++ to cubin, machine code for one architecture, through NVRTC; needs neither a GPU nor a driver.

Cubin rather than PTX, because a driver older than the compiler refuses newer PTX.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache

from equipoise.base.sources import root
from equipoise.calibrate.device.libraries import load_library

KERNELS = root() / "calibrate" / "measure" / "kernels"
SOURCES = ("bandwidth", "arithmetic", "tensor", "latency", "warpgroup")
INSTRUCTIONS = "instructions.cuh"
ONE_ARCHITECTURE = {"warpgroup": "sm_90a"}
"""Files of instructions that one generation alone has, and the compiler's name for it with all that is its own."""

_INSTALL = "install the nvidia-cuda-nvrtc package (pip install 'equipoise[gpu]') or a CUDA toolkit"


class CompileError(RuntimeError):
    """NVRTC refused a kernel; the message holds its log."""


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    return load_library("nvrtc", ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"), _INSTALL)


def version() -> str:
    """NVRTC's version, e.g. "13.0". Raises LibraryMissingError."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(_library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "nvrtcVersion")
    return f"{major.value}.{minor.value}"


def _check(code: int, what: str) -> None:
    if code != 0:
        text = _library().nvrtcGetErrorString
        text.restype = ctypes.c_char_p
        raise CompileError(f"{what}: {text(code).decode()}")


def source(name: str) -> str:
    """The text of one kernel file behind the instructions that it uses."""
    parts = (INSTRUCTIONS, f"{name}.cuh", f"{name}.cu")
    return "".join((KERNELS / part).read_text() for part in parts if (KERNELS / part).exists())


def compile_cubin(text: str, name: str, architecture: str) -> bytes:
    """Machine code of CUDA C++ source for an architecture such as "sm_90".

    Raises CompileError with the compiler's log, LibraryMissingError without NVRTC.
    """
    library, program = _library(), ctypes.c_void_p()
    _check(
        library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), f"{name}.cu".encode(), 0, None, None),
        "nvrtcCreateProgram",
    )
    try:
        options = [f"--gpu-architecture={architecture}", "--std=c++17"]
        array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        code = library.nvrtcCompileProgram(program, len(options), array)
        if code != 0:
            raise CompileError(f"{name}.cu for {architecture}: {_log(program)}")
        return _image(program)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _log(program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    _library().nvrtcGetProgramLogSize(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    _library().nvrtcGetProgramLog(program, buffer)
    return buffer.value.decode(errors="replace").strip()


def _image(program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _check(_library().nvrtcGetCUBINSize(program, ctypes.byref(size)), "nvrtcGetCUBINSize")
    buffer = ctypes.create_string_buffer(size.value)
    _check(_library().nvrtcGetCUBIN(program, buffer), "nvrtcGetCUBIN")
    return buffer.raw


@lru_cache(maxsize=64)
def cubin(name: str, architecture: str) -> bytes:
    """Machine code of one of the kernel files (`SOURCES`) for an architecture such as "sm_90".

    Raises CompileError, also for a file of `ONE_ARCHITECTURE` and any other architecture.
    """
    exact = ONE_ARCHITECTURE.get(name, architecture)
    if exact.removesuffix("a") != architecture.removesuffix("a"):
        raise CompileError(f"{name}.cu: is for {exact} alone, not for {architecture}")
    return compile_cubin(source(name), name, exact)
