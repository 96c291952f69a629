"""The rows that a validation may fit on. Choices made after looking at results are listed on the page.

A rule reads a row's key and the number of the split, never a measured value. The keys:

| data set | key | fitted on |
|---|---|---|
| dense LLM training | the model family (its published name, not the GPU, source or layout) | half of the families |
| vTrain, one node | the whole configuration of the row | one tenth of the rows |
| vTrain, many nodes | as vTrain, one node | half of the single-node rows; no multi-node row |
| Ultra-Scale Playbook | model, tensor, pipeline, ZeRO stage of rows of the smallest model on <= 4 nodes | half |
| Sailor plans | the whole configuration of the row | half of the rows |
| NCCL | curve (system, version, operation, type, GPUs) and size | half of the sizes |
| Alibaba jitter | job and stretch of 20 steps | half of the stretches |
| Zeus, power limits | - (no hash) | each model's epoch and power at its highest limit |
| Shockwave | - (no hash) | the authors' throughput inputs |
| NeuSight | - (no hash) | shapes and data sheets; of the second line also inference latencies |

A data set is split ten times, `SPLITS`; a table gives the median and the worst of them.
"""

from __future__ import annotations

import hashlib

SPLITS = range(10)


def bucket(key: str, split: int, buckets: int) -> int:
    """A number in [0, buckets) that depends on the key and the split alone, the same in every process."""
    digest = hashlib.sha256(f"{key}/{split}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % buckets


def fitted_half(key: str, split: int) -> bool:
    """Whether rows of this key belong to the fitted half of the split; the others are held out."""
    return bucket(key, split, 2) == 0


def fitted_tenth(key: str, split: int) -> bool:
    """Whether rows of this key belong to the fitted tenth of the split; the others are held out."""
    return bucket(key, split, 10) == 0
