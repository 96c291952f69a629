"""The CUDA driver through its C interface: contexts, memory, streams, events, launches, green contexts.

Only libcuda.so.1, which every driver installs, and cubins from `calibrate.device.nvrtc`; no CUDA toolkit and no
binding. The signatures are those of cuda.h 13.0, of functions that exist since CUDA 12.0 (green contexts:
12.4). The primary context is used, so that other libraries in the process share memory and device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.calibrate.device import nvrtc

ATTRIBUTES = {"sm_count": 16, "l2_bytes": 38, "major": 75, "minor": 76}
STREAM_NON_BLOCKING = 1
RESOURCE_SM = 1
RESOURCE_BYTES = 144  # sizeof(CUdevResource)
RESOURCE_SM_COUNT_AT = 96  # offset of sm.smCount in it
GREEN_DEFAULT_STREAM = 1
HOST_MAPPED = 2
ALREADY_ENABLED = 704


class CudaUnavailableError(RuntimeError):
    """No driver or no device; the message is one line that says what is missing."""


class CudaError(RuntimeError):
    """A driver call failed; the message names the call and the driver's error."""


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise CudaUnavailableError("no NVIDIA driver here: libcuda.so.1 was not found") from None
    code = library.cuInit(0)
    if code != 0:
        raise CudaUnavailableError(f"the CUDA driver found no usable device ({_name(library, code)})")
    return library


def _name(library: ctypes.CDLL, code: int) -> str:
    text = c_char_p()
    library.cuGetErrorName(code, byref(text))
    return text.value.decode() if text.value else f"error {code}"


def call(function: str, *arguments: Any) -> None:
    """One driver call. Raises CudaError naming it, CudaUnavailableError without a driver."""
    library = _library()
    try:
        entry = getattr(library, function)
    except AttributeError:
        raise CudaError(f"{function}: this driver is too old to have it") from None
    code = entry(*arguments)
    if code != 0:
        raise CudaError(f"{function}: {_name(library, code)}")


def device_count() -> int:
    """GPUs that CUDA sees. Raises CudaUnavailableError."""
    count = c_int()
    call("cuDeviceGetCount", byref(count))
    return count.value


def driver_version() -> str:
    """The newest CUDA that the driver supports, e.g. "13.0"."""
    version = c_int()
    call("cuDriverGetVersion", byref(version))
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def _settle() -> None:
    """Wait for the default stream.

    A memset, and a copy from pageable memory, may return before the device has carried them out (cuda.h, API
    synchronization behaviour), and streams made with STREAM_NON_BLOCKING do not wait for the default one.
    """
    call("cuStreamSynchronize", c_void_p())


class Buffer:
    """Device memory, freed by `free` or with the object."""

    def __init__(self, size_bytes: int) -> None:
        """Raises CudaError when the device is out of memory."""
        self.size_bytes = size_bytes
        self.pointer = c_uint64()
        call("cuMemAlloc_v2", byref(self.pointer), c_size_t(size_bytes))

    def at(self, offset_bytes: int) -> c_uint64:
        """Address of a byte in the buffer."""
        return c_uint64(self.pointer.value + offset_bytes)

    def write(self, values: npt.NDArray[Any], offset_bytes: int = 0) -> Buffer:
        """Copy a contiguous array in, and wait until it is there."""
        data = np.ascontiguousarray(values)
        if offset_bytes + data.nbytes > self.size_bytes:
            raise ValueError(f"{data.nbytes} bytes do not fit into a buffer of {self.size_bytes}")
        call("cuMemcpyHtoD_v2", self.at(offset_bytes), data.ctypes.data_as(c_void_p), c_size_t(data.nbytes))
        _settle()
        return self

    def read(self, dtype: npt.DTypeLike, count: int, offset_bytes: int = 0) -> npt.NDArray[Any]:
        """The first `count` elements from `offset_bytes` on, as an array."""
        result = np.empty(count, dtype)
        call("cuMemcpyDtoH_v2", result.ctypes.data_as(c_void_p), self.at(offset_bytes), c_size_t(result.nbytes))
        return result

    def fill(self, word: int) -> Buffer:
        """Set every 32-bit word, and wait until it is done."""
        call("cuMemsetD32_v2", self.pointer, c_uint(word), c_size_t(self.size_bytes // 4))
        _settle()
        return self

    def free(self) -> None:
        """Give the memory back; a second call does nothing."""
        if self.pointer.value:
            call("cuMemFree_v2", self.pointer)
            self.pointer = c_uint64()

    def __del__(self) -> None:
        try:
            self.free()
        except Exception:  # the interpreter or the context may be going away
            return


class PinnedBuffer:
    """Page-locked host memory that the device can reach; `array` views it as bytes."""

    def __init__(self, size_bytes: int) -> None:
        self._pointer = c_void_p()
        call("cuMemHostAlloc", byref(self._pointer), c_size_t(size_bytes), c_uint(HOST_MAPPED))
        memory = (ctypes.c_uint8 * size_bytes).from_address(self._pointer.value or 0)
        self.array: npt.NDArray[np.uint8] = np.ctypeslib.as_array(memory)
        self.device_pointer = c_uint64()
        call("cuMemHostGetDevicePointer_v2", byref(self.device_pointer), self._pointer, c_uint(0))

    @property
    def address(self) -> int:
        """Host address."""
        return self._pointer.value or 0

    def free(self) -> None:
        """Give the memory back; views of it must not be used any more."""
        if self._pointer.value:
            call("cuMemFreeHost", self._pointer)
            self._pointer = c_void_p()


class Event:
    """A point in a stream; `elapsed_s` is the device's time between two."""

    def __init__(self) -> None:
        self.handle = c_void_p()
        call("cuEventCreate", byref(self.handle), c_uint(0))

    def record(self, stream: c_void_p) -> None:
        """Record the event after the present work of the stream."""
        call("cuEventRecord", self.handle, stream)

    def elapsed_s(self, start: Event) -> float:
        """Seconds from `start` to this event, once both have happened."""
        call("cuEventSynchronize", self.handle)
        milliseconds = c_float()
        call("cuEventElapsedTime", byref(milliseconds), start.handle, self.handle)
        return milliseconds.value * 1e-3


class Device:
    """One GPU with its primary context current in this thread."""

    def __init__(self, index: int = 0) -> None:
        """Raises CudaUnavailableError, CudaError."""
        self.index = index
        self._device = c_int()
        call("cuDeviceGet", byref(self._device), c_int(index))
        self.context = c_void_p()
        call("cuDevicePrimaryCtxRetain", byref(self.context), self._device)
        self.use()
        for name, number in ATTRIBUTES.items():
            value = c_int()
            call("cuDeviceGetAttribute", byref(value), c_int(number), self._device)
            setattr(self, name, value.value)
        self.stream = self.new_stream()

    sm_count: int
    l2_bytes: int
    major: int
    minor: int

    def use(self) -> None:
        """Make this device's context the thread's current one."""
        call("cuCtxSetCurrent", self.context)

    @cached_property
    def name(self) -> str:
        """The product's name."""
        text = ctypes.create_string_buffer(256)
        call("cuDeviceGetName", text, c_int(256), self._device)
        return text.value.decode()

    @cached_property
    def uuid(self) -> str:
        """As NVML writes it: "GPU-" and 32 hexadecimal digits in five groups."""
        raw = (ctypes.c_uint8 * 16)()
        call("cuDeviceGetUuid_v2", raw, self._device)
        digits = bytes(raw).hex()
        groups = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
        return f"GPU-{'-'.join(groups)}"

    @property
    def architecture(self) -> str:
        """For the compiler, e.g. "sm_90"."""
        return f"sm_{self.major}{self.minor}"

    @property
    def memory_bytes(self) -> int:
        """All device memory."""
        total = c_size_t()
        call("cuDeviceTotalMem_v2", byref(total), self._device)
        return total.value

    @property
    def free_bytes(self) -> int:
        """Free device memory."""
        free, total = c_size_t(), c_size_t()
        call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value

    def new_stream(self) -> c_void_p:
        """A stream that does not wait for the default one."""
        stream = c_void_p()
        call("cuStreamCreate", byref(stream), c_uint(STREAM_NON_BLOCKING))
        return stream

    @staticmethod
    def wait(stream: c_void_p) -> None:
        """Wait for all work in the stream."""
        call("cuStreamSynchronize", stream)

    def kernel(self, file: str, name: str) -> c_void_p:
        """A kernel of one of the kernel files, as a context-independent handle.

        Raises CudaError when the file has no such kernel for this architecture, CompileError.
        """
        return self.kernel_of(self._modules(file), name)

    @staticmethod
    def kernel_of(library: c_void_p, name: str) -> c_void_p:
        """A kernel of a library that was loaded. Raises CudaError when it has none of that name."""
        kernel = c_void_p()
        call("cuLibraryGetKernel", byref(kernel), library, name.encode())
        return kernel

    @staticmethod
    def load(image: bytes) -> c_void_p:
        """A library of kernels from machine code. Raises CudaError when it is not this device's."""
        library = c_void_p()
        call("cuLibraryLoadData", byref(library), c_char_p(image), None, None, 0, None, None, 0)
        return library

    @lru_cache(maxsize=16)  # noqa: B019 - one device object lives as long as the process
    def _modules(self, file: str) -> c_void_p:
        return self.load(nvrtc.cubin(file, self.architecture))

    def launch(
        self, kernel: c_void_p, blocks: int, threads: int, arguments: Sequence[Any], stream: c_void_p | None = None
    ) -> None:
        """Queue a kernel. Arguments are ctypes values or Buffers. Raises CudaError."""
        values = [a.pointer if isinstance(a, Buffer) else a for a in arguments]
        pointers = (c_void_p * max(len(values), 1))(*(ctypes.addressof(v) for v in values))
        grid, block = (c_uint(blocks), c_uint(1), c_uint(1)), (c_uint(threads), c_uint(1), c_uint(1))
        call("cuLaunchKernel", kernel, *grid, *block, c_uint(0), stream or self.stream, pointers, None)

    def copy(self, target: c_uint64, origin: c_uint64, size_bytes: int, stream: c_void_p | None = None) -> None:
        """Queue a copy within the device."""
        call("cuMemcpyDtoDAsync_v2", target, origin, c_size_t(size_bytes), stream or self.stream)

    def tile(self, buffer: Buffer, block: npt.NDArray[Any]) -> Buffer:
        """Fill a buffer with copies of a block, doubling what is there, and wait for it."""
        done = min(block.nbytes, buffer.size_bytes)
        buffer.write(block.view(np.uint8)[:done])
        while done < buffer.size_bytes:
            more = min(done, buffer.size_bytes - done)
            self.copy(buffer.at(done), buffer.pointer, more)
            done += more
        self.wait(self.stream)
        return buffer

    def to_device(self, target: c_uint64, host_address: int, size_bytes: int) -> None:
        """Queue a copy from host memory; from pageable memory the call returns when it is staged."""
        call("cuMemcpyHtoDAsync_v2", target, c_void_p(host_address), c_size_t(size_bytes), self.stream)

    def to_host(self, host_address: int, origin: c_uint64, size_bytes: int) -> None:
        """Queue a copy to host memory."""
        call("cuMemcpyDtoHAsync_v2", c_void_p(host_address), origin, c_size_t(size_bytes), self.stream)

    def to_peer(self, target: c_uint64, peer: Device, origin: c_uint64, size_bytes: int) -> None:
        """Queue a copy from this device's memory to another's."""
        arguments = (target, peer.context, origin, self.context, c_size_t(size_bytes), self.stream)
        call("cuMemcpyPeerAsync", *arguments)

    def reach(self, peer: Device) -> bool:
        """Let this device address the peer's memory directly; False where the hardware cannot."""
        possible = c_int()
        call("cuDeviceCanAccessPeer", byref(possible), self._device, peer._device)
        if not possible.value:
            return False
        self.use()
        code = _library().cuCtxEnablePeerAccess(peer.context, c_uint(0))
        if code not in (0, ALREADY_ENABLED):
            raise CudaError(f"cuCtxEnablePeerAccess: {_name(_library(), code)}")
        return True

    def partition(self, sm_count: int) -> DevicePartition:
        """A stream that runs on about `sm_count` SMs only (a green context). Raises CudaError."""
        return DevicePartition(self, sm_count)


class DevicePartition:
    """A green context: `stream` runs on `sm_count` SMs, which may be more or fewer than asked for.

    With `complement` it takes the SMs that a partition of `wanted` leaves over.
    """

    def __init__(self, device: Device, wanted: int, complement: bool = False) -> None:
        whole, part, rest = (ctypes.create_string_buffer(RESOURCE_BYTES) for _ in range(3))
        call("cuDeviceGetDevResource", device._device, whole, c_int(RESOURCE_SM))
        groups = c_uint(1)
        call("cuDevSmResourceSplitByCount", part, byref(groups), whole, rest, c_uint(0), c_uint(wanted))
        taken = rest if complement else part
        self.sm_count = c_uint.from_buffer(taken, RESOURCE_SM_COUNT_AT).value
        descriptor, self._context = c_void_p(), c_void_p()
        call("cuDevResourceGenerateDesc", byref(descriptor), taken, c_uint(1))
        call("cuGreenCtxCreate", byref(self._context), descriptor, device._device, c_uint(GREEN_DEFAULT_STREAM))
        self.stream = c_void_p()
        flags = (c_uint(STREAM_NON_BLOCKING), c_int(0))
        call("cuGreenCtxStreamCreate", byref(self.stream), self._context, *flags)

    def free(self) -> None:
        """Give the SMs back."""
        call("cuStreamDestroy_v2", self.stream)
        call("cuGreenCtxDestroy", self._context)
