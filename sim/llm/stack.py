"""Fitted constants of a software stack on an accelerator."""

from __future__ import annotations

from dataclasses import dataclass

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
