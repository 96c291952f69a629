"""Names under which Slurm and Kubernetes offer accelerators of NVIDIA and other vendors."""

from __future__ import annotations

import re

GRES = frozenset({"gpu", "dcu", "gaudi", "gcu", "hpu", "ipu", "mlu", "npu", "tpu", "xpu"})
"""Names of generic resources of Slurm: `gpu` of NVIDIA, AMD and Intel, the others as their vendors name them."""

_DEVICE = re.compile(r"gaudi|i915|xe|neuron|neurondevice|ascend[0-9].*", re.IGNORECASE)
_SLICE = re.compile(r"(?:^|[^0-9])[1-7]g\.[0-9]+gb")


def is_accelerator(resource: str) -> bool:
    """Whether a resource of Kubernetes counts whole GPUs: `nvidia.com/gpu`, `habana.ai/gaudi`, `gpu.nvidia.com`.

    Slices (`nvidia.com/mig-1g.5gb`), shares (`nvidia.com/gpucores`) and memory (`gpu.memory`) of a GPU do not.
    """
    device = resource.rpartition("/")[2]
    if device == resource:  # a device class of dynamic resource allocation
        return re.fullmatch(r"gpu\.[\w-]+\.[\w.-]+", resource) is not None
    return device.lower() in GRES or _DEVICE.fullmatch(device) is not None


def gres_name(text: str) -> tuple[str, str] | None:
    """(name, type or "") of `gres/gpu:a100` where it is an accelerator, else None."""
    kind, _, label = text.removeprefix("gres/").partition(":")
    if not text.startswith("gres/") or kind not in GRES:
        return None
    return kind, label


def is_slice(gpu_type: str) -> bool:
    """Whether a GPU type is a part of one: `a100_1g.5gb`, as NVIDIA's MIG names them."""
    return _SLICE.search(gpu_type.lower()) is not None
