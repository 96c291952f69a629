"""Constants of known stacks, fitted to measurements; a fit to steps of one's own replaces them.

Sources: MosaicML llm-foundry (FSDP, eager, 155 steps), Megatron-LM (Korthikanti et al. 2022, 8 steps), NVIDIA's
recipes (Megatron-core with Transformer Engine, 93 steps), the Ultra-Scale Playbook (nanotron, 431 steps), vTrain
(Megatron-DeepSpeed without fused attention, 930 steps); of our own, PyTorch 2.11 on one H200, 32-bit weights under
bf16 autocast, blocks as written or through torch.compile (`tests/bench/gpu/large.py`, 16 steps of one shape): on
one GPU nothing is exchanged, so what concerns exchanges is that of fsdp-eager/H100. They predict well and trade
against each other: no single one is a measurement.
"""

from __future__ import annotations

from equipoise.sim.llm.stack import Stack

NAMES = (
    "fsdp-eager/A100", "fsdp-eager/H100", "megatron/A100", "megatron-core/H100", "nanotron/H100",
    "megatron-deepspeed/A100", "pytorch/H200", "pytorch-compiled/H200",
)  # fmt: skip
CONSTANTS = """
matmul_efficiency          0.8523     0.7454     0.8632     0.7454     0.5695     0.8177      0.687      0.687
fp8_efficiency             0.6076     0.7043     0.6076     0.7043        0.6        0.6     0.7043     0.7043
matmul_overhead_s       1.392e-05  1.392e-05  1.335e-05  1.592e-05  5.471e-06  9.616e-05  7.457e-06    8.1e-06
attention_efficiency       0.3205     0.1769     0.1635     0.6282     0.2688     0.7068     0.4288     0.4288
score_bytes               0.02169    0.02169    0.02083    0.02051    0.01714       9.85    0.02169    0.02169
elementwise_bytes           33.96      33.96      16.15      24.14      5.571      2.132       25.3      17.24
accumulate_bytes            8.068      8.068      6.097      5.704      23.89      3.499      5.405      5.472
host_s_per_layer        0.0009596  0.0009596  0.0009596  0.0009596   0.004387   0.002678   0.001003   0.001003
host_s_per_pass             0.001      0.001      0.001      0.001   0.001183  0.0005503   0.001104   0.001051
host_s_per_tensor_rank     0.0001     0.0001     0.0001     0.0001    0.00257     0.0001     0.0001     0.0001
tensor_efficiency          0.6897     0.6897     0.3417          1     0.5552      0.676     0.6897     0.6897
tensor_latency_s        2.093e-05  2.093e-05  2.159e-05  2.252e-05  3.309e-05  5.312e-05  2.093e-05  2.093e-05
tensor_hop_s                1e-05      1e-05      1e-05      1e-05  5.671e-05   1.53e-06      1e-05      1e-05
send_efficiency            0.6687     0.6687          1      0.639     0.6405          1     0.6687     0.6687
send_latency_s          0.0001101  0.0001101  0.0001101   0.000126  8.518e-05  0.0001365  0.0001101  0.0001101
send_exposed               0.4247     0.4247     0.3598     0.5009        0.5        0.5     0.4247     0.4247
exchange_efficiency        0.8006     0.8006     0.7539          1     0.1723     0.2344     0.8006     0.8006
exchange_latency_s      3.849e-05  3.849e-05  2.901e-05  2.903e-05  2.071e-05  1.952e-05  3.849e-05  3.849e-05
overlap                         1          1      1.383      1.056          1      1.752          1          1
bubble                      1.048      1.048          1          1      1.001          1      1.048      1.048
head_bytes                  24.88      24.88      26.66       27.7      77.62        120      18.54      16.82
optimizer_bytes             27.66      27.66      39.67      30.02         80       3.88      42.97      29.77
step_s                     0.0244     0.0244    0.01899    0.01772     0.0355   0.004537    0.01462   0.009392
"""
"""A row per field of `Stack`, a column per name."""

_ROWS = [line.split() for line in CONSTANTS.strip().splitlines()]
STACKS: dict[str, Stack] = {
    name: Stack(**{row[0]: float(row[k]) for row in _ROWS}) for k, name in enumerate(NAMES, 1)
}
