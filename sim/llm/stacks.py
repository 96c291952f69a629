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
matmul_efficiency          0.8535     0.7473     0.7988     0.7473     0.5518     0.8575      0.687      0.687
fp8_efficiency             0.6077     0.7078     0.6077     0.7078        0.6        0.6     0.7078     0.7078
matmul_overhead_s       1.374e-05  1.374e-05  1.301e-05  1.554e-05  1.694e-05  9.417e-05  7.457e-06    8.1e-06
attention_efficiency       0.3206     0.1768     0.1829     0.6079     0.3334       0.28     0.4288     0.4288
score_bytes               0.02168    0.02168    0.02082    0.02051    0.01953      8.825    0.02168    0.02168
elementwise_bytes           34.09      34.09      17.94      23.86      7.438      4.059       25.3      17.24
accumulate_bytes            7.685      7.685       5.51      5.414      16.21      2.806      5.405      5.472
host_s_per_layer        0.0009634  0.0009634  0.0009634  0.0009634   0.004328   0.002666   0.001003   0.001003
host_s_per_pass             0.001      0.001      0.001      0.001   0.001323  0.0004128   0.001104   0.001051
host_s_per_tensor_rank     0.0001     0.0001     0.0001     0.0001   0.002568     0.0001     0.0001     0.0001
tensor_efficiency          0.7055     0.7055     0.3814        1.0     0.5572     0.6723     0.7055     0.7055
tensor_latency_s        2.097e-05  2.097e-05  2.151e-05  2.264e-05  4.005e-05  4.647e-05  2.097e-05  2.097e-05
tensor_hop_s                1e-05      1e-05      1e-05      1e-05  5.572e-05  1.415e-06      1e-05      1e-05
send_efficiency             0.624      0.624     0.6491     0.6029     0.4019      0.111      0.624      0.624
send_latency_s          0.0001084  0.0001084  0.0001083  0.0001234  0.0001522  0.0004411  0.0001084  0.0001084
send_exposed               0.4665     0.4665      0.481     0.5394        0.5        0.5     0.4665     0.4665
exchange_efficiency          0.79       0.79     0.7526        1.0      0.194     0.2204       0.79       0.79
exchange_latency_s      3.854e-05  3.854e-05  2.903e-05  2.905e-05  2.023e-05  1.951e-05  3.854e-05  3.854e-05
overlap                       1.0        1.0       1.37        1.0      1.112      2.073        1.0        1.0
bubble                     0.8954     0.8954      0.622     0.8404     0.8748     0.8773     0.8954     0.8954
head_bytes                  24.89      24.89      26.35      27.41      50.84      115.3      18.54      16.82
optimizer_bytes             27.98      27.98       39.8      30.45      42.04      4.339      42.97      29.77
step_s                    0.02452    0.02452    0.01892    0.01772    0.07569   0.006653    0.01462   0.009392
"""
"""A row per field of `Stack`, a column per name."""

_ROWS = [line.split() for line in CONSTANTS.strip().splitlines()]
STACKS: dict[str, Stack] = {
    name: Stack(**{row[0]: float(row[k]) for row in _ROWS}) for k, name in enumerate(NAMES, 1)
}
