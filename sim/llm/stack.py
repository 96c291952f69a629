"""Fitted constants of a software stack on an accelerator, and the stacks that the simulator knows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Number = float | Floats


@dataclass(frozen=True, slots=True)
class Stack:
    """Constants of one software stack; all positive. A field may be an array, one value per row, while fitting.

    | constant | meaning |
    |---|---|
    | matmul_efficiency, fp8_efficiency | share of the peak rate that a large product reaches |
    | matmul_overhead_s | time of every product beside its FLOP |
    | attention_efficiency | share of the 16-bit peak that the causal scores reach |
    | score_bytes | memory traffic per score, for attention that writes its scores to memory |
    | elementwise_bytes | memory traffic of norms, activations, residuals per element of a layer |
    | accumulate_bytes | memory traffic per parameter to add a micro-batch's gradients to the step's |
    | host_s_per_layer, host_s_per_pass | time in which the host starts one layer, or what is around the layers |
    | host_s_per_tensor_rank | what every further tensor rank adds to a layer's start, in pipelines over nodes |
    | tensor_efficiency, tensor_latency_s | share of the link's rate and latency of a tensor all-reduce |
    | tensor_hop_s | latency of every step of a tensor ring that leaves its node |
    | send_efficiency, send_latency_s | the same of a pipeline send |
    | send_exposed | share of an interleaved schedule's sends that shows |
    | exchange_efficiency, exchange_latency_s | the same of gradient and parameter exchange, latency per hop |
    | overlap | exponent of how compute hides exchange: 1 not at all, large fully (Qiao et al. 2021) |
    | bubble | share of the ideal pipeline bubble that is met |
    | shard_bytes | memory traffic per parameter of a layer for every gather or scatter of sharded parameters |
    | head_bytes | memory traffic per logit, forward, loss and backward |
    | optimizer_bytes | memory traffic of the optimiser per parameter |
    | step_s | time per step beside everything else |
    | stall_s, stall_chance | what a slot of a pipeline takes longer where it stalls, and how often, on one node |
    | selective_products | share of the products that selective recomputation repeats; 0: attention alone |
    """

    matmul_efficiency: Number = 0.75
    fp8_efficiency: Number = 0.60
    matmul_overhead_s: Number = 10e-6
    attention_efficiency: Number = 0.35
    score_bytes: Number = 0.02
    elementwise_bytes: Number = 20.0
    accumulate_bytes: Number = 6.0
    host_s_per_layer: Number = 0.3e-3
    host_s_per_pass: Number = 1e-3
    host_s_per_tensor_rank: Number = 0.1e-3
    tensor_efficiency: Number = 0.8
    tensor_latency_s: Number = 20e-6
    tensor_hop_s: Number = 10e-6
    send_efficiency: Number = 0.6
    send_latency_s: Number = 50e-6
    send_exposed: Number = 0.5
    exchange_efficiency: Number = 0.7
    exchange_latency_s: Number = 20e-6
    overlap: Number = 2.0
    bubble: Number = 1.0
    shard_bytes: Number = 19.0
    head_bytes: Number = 16.0
    optimizer_bytes: Number = 32.0
    step_s: Number = 10e-3
    selective_products: Number = 0.0
    stall_s: Number = 0.0
    stall_chance: Number = 0.0


NAMES = (
    "fsdp-eager/A100",
    "fsdp-eager/H100",
    "megatron/A100",
    "megatron-core/H100",
    "nanotron/H100",
    "megatron-deepspeed/A100",
    "pytorch/H200",
    "pytorch-compiled/H200",
)
CONSTANTS = """
matmul_efficiency          0.8494      0.741     0.8583      0.741     0.5682     0.8194      0.687      0.687
fp8_efficiency             0.6078     0.6954     0.6078     0.6954        0.6        0.6     0.6954     0.6954
matmul_overhead_s       1.307e-05  1.307e-05  1.276e-05  1.475e-05  5.488e-06  9.571e-05  7.457e-06    8.1e-06
attention_efficiency       0.3202      0.177     0.1728      0.686     0.2736     0.6509     0.4288     0.4288
score_bytes               0.02141    0.02141    0.02073    0.02045    0.01712      9.831    0.02141    0.02141
elementwise_bytes           33.74      33.74      17.28      25.43      5.751      2.052       25.3      17.24
accumulate_bytes             7.31       7.31      5.833      5.488      23.92      3.141      5.405      5.472
host_s_per_layer           0.0003     0.0003     0.0003     0.0003   0.004385   0.002684   0.001003   0.001003
host_s_per_pass             0.001      0.001      0.001      0.001   0.001163  0.0003529   0.001104   0.001051
host_s_per_tensor_rank     0.0001     0.0001     0.0001     0.0001    0.00257     0.0001     0.0001     0.0001
tensor_efficiency          0.6927     0.6927     0.3439          1     0.5557      0.672     0.6927     0.6927
tensor_latency_s        2.068e-05  2.068e-05  2.125e-05  2.191e-05  3.262e-05  5.268e-05  2.068e-05  2.068e-05
tensor_hop_s                1e-05      1e-05      1e-05      1e-05   5.67e-05  1.419e-06      1e-05      1e-05
send_efficiency            0.6653     0.6653          1     0.6424     0.6438          1     0.6653     0.6653
send_latency_s           0.000108   0.000108  0.0001079  0.0001212  8.557e-05  0.0002607   0.000108   0.000108
send_exposed                0.422      0.422     0.3571     0.4913        0.5        0.5      0.422      0.422
exchange_efficiency        0.7984     0.7984      0.716          1     0.1745     0.2343     0.7984     0.7984
exchange_latency_s      3.567e-05  3.567e-05  2.795e-05  2.796e-05   2.07e-05  1.951e-05  3.567e-05  3.567e-05
overlap                         4          4      1.448      1.092          1      1.716          4          4
shard_bytes                    19         19         19         19         19         19         19         19
bubble                      1.053      1.053          1          1      1.001          1      1.053      1.053
head_bytes                  25.33      25.33      24.95      25.84      77.77      118.8      18.54      16.82
optimizer_bytes             29.36      29.36      41.17      31.34         80      3.997      42.97      29.77
step_s                    0.02478    0.02478    0.01829    0.01716    0.03801   0.004502    0.01462   0.009392
selective_products            0.5        0.5          0          0          0          0        0.5        0.5
stall_s                         0          0          0          0       0.53          0          0          0
stall_chance                    0          0          0          0       0.07          0          0          0
"""
"""A row per field of `Stack`, a column per name."""

_ROWS = [line.split() for line in CONSTANTS.strip().splitlines()]
_FITTED = {name: Stack(**{row[0]: float(row[k]) for row in _ROWS}) for k, name in enumerate(NAMES, 1)}


def _compiled(eager: Stack) -> Stack:
    """FSDP through torch.compile: less traffic of elements and of the head, as on one GPU (the last two columns)."""
    one, other = _FITTED["pytorch/H200"], _FITTED["pytorch-compiled/H200"]
    less = {name: getattr(other, name) / getattr(one, name) for name in ("elementwise_bytes", "head_bytes")}
    return replace(eager, **{name: getattr(eager, name) * share for name, share in less.items()})


STACKS: dict[str, Stack] = _FITTED | {
    f"fsdp-compiled/{gpu}": _compiled(_FITTED[f"fsdp-eager/{gpu}"]) for gpu in ("A100", "H100")
}
