"""The states of the random number generators of a training script, as plain data."""

from __future__ import annotations

import base64
import random
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch


def state(device: torch.device) -> dict[str, Any]:
    """The states of Python, NumPy, PyTorch on the CPU, and PyTorch on `device`."""
    name, keys, *rest = cast("tuple[Any, ...]", np.random.get_state())  # noqa: NPY002 (scripts draw from it)
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return {
        "python": random.getstate(),
        "numpy": [name, _text(keys.astype("<u4").tobytes()), *rest],
        "torch": _text(torch.get_rng_state().numpy().tobytes()),
        "cuda": None if cuda is None else _text(cuda.numpy().tobytes()),
    }


def load(saved: Mapping[str, Any], device: torch.device) -> None:
    """Restore a `state`, which may have been through JSON."""
    version, words, gauss = saved["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, *rest = saved["numpy"]
    words32 = np.frombuffer(base64.b64decode(keys), dtype="<u4").astype(np.uint32)
    np.random.set_state((name, words32, *rest))  # noqa: NPY002
    torch.set_rng_state(_tensor(saved["torch"]))
    if saved["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(_tensor(saved["cuda"]), device)


def seed(*key: int) -> None:
    """Seed all generators from `key`."""
    words = [int(word) for word in np.random.SeedSequence(key).generate_state(3)]
    random.seed(words[0])
    np.random.seed(words[1])  # noqa: NPY002
    torch.manual_seed(words[2])


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
