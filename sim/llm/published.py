"""Shapes of published models that public measurements name; each from its paper or its published configuration."""

from __future__ import annotations

from dataclasses import replace

from equipoise.sim.llm.shape import LatentAttention, Transformer


def gpt(layers: int, hidden: int, heads: int, vocab: int, sequence: int, tied: bool = True) -> Transformer:
    """GPT-3 style: biases, layer norms, learned positions, feed-forward of four times the width."""
    return Transformer(
        layers,
        hidden,
        heads,
        4 * hidden,
        vocab,
        sequence,
        tied=tied,
        norm="layer",
        bias=True,
        learned_positions=sequence,
    )


def llama(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, sequence: int) -> Transformer:
    """Llama style: gated feed-forward, RMS norms, no biases, separate output matrix."""
    return Transformer(layers, hidden, heads, ffn, vocab, sequence, kv_heads=kv_heads, gated=True)


def nemotron(layers: int, hidden: int, heads: int, kv_heads: int) -> Transformer:
    """Nemotron: squared ReLU (no gate), 256,000 tokens, separate output matrix, sequences of 4,096."""
    return Transformer(layers, hidden, heads, 4 * hidden, 256_000, 4096, kv_heads=kv_heads, norm="layer")


def qwen3(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, experts: int = 0) -> Transformer:
    """Qwen3: heads of 128, normalised queries and keys; of its experts eight are active. ffn: of an expert, if any."""
    dense = Transformer(
        layers, hidden, heads, ffn, 151_936, 4096, kv_heads=kv_heads, head_size=128, gated=True, qk_norm=True
    )
    return replace(dense, ffn=0, experts=experts, top_k=8, expert_ffn=ffn) if experts else dense


MPT = {
    "mpt-125m": (12, 768, 12),
    "mpt-350m": (24, 1024, 16),
    "mpt-760m": (24, 1536, 12),
    "mpt-1b": (24, 2048, 16),
    "mpt-3b": (32, 2560, 20),
    "mpt-7b": (32, 4096, 32),
    "mpt-13b": (40, 5120, 40),
    "mpt-30b": (48, 7168, 56),
    "mpt-70b": (80, 8192, 64),
}

SHAPES: dict[str, Transformer] = {
    **{name: gpt(*size, 50_368, 2048) for name, size in MPT.items()},
    "gpt3-5b": gpt(24, 4096, 32, 51_200, 2048),
    "gpt3-20b": gpt(44, 6144, 48, 51_200, 2048),
    "gpt3-175b": gpt(96, 12_288, 96, 51_200, 2048),
    "megatron-22b": gpt(48, 6144, 64, 51_200, 2048),
    "turing-530b": gpt(105, 20_480, 128, 51_200, 2048),
    "megatron-1t": gpt(128, 25_600, 160, 51_200, 2048),
    "llama2-7b": llama(32, 4096, 32, 32, 11_008, 32_000, 4096),
    "llama2-13b": llama(40, 5120, 40, 40, 13_824, 32_000, 4096),
    "llama2-70b": llama(80, 8192, 64, 8, 28_672, 32_000, 4096),
    "llama3-8b": llama(32, 4096, 32, 8, 14_336, 128_256, 8192),
    "llama3-70b": llama(80, 8192, 64, 8, 28_672, 128_256, 8192),
    "llama3-405b": llama(126, 16_384, 128, 8, 53_248, 128_256, 8192),
    "qwen3-32b": qwen3(64, 5120, 64, 8, 25_600),
    "qwen3-30b-a3b": qwen3(48, 2048, 32, 4, 768, 128),
    "qwen3-235b-a22b": qwen3(94, 4096, 64, 4, 1536, 128),
    "deepseek-v3": Transformer(
        61,
        7168,
        128,
        18_432,
        129_280,
        4096,
        gated=True,
        experts=256,
        top_k=8,
        expert_ffn=2048,
        shared_experts=1,
        dense_layers=3,
        latent=LatentAttention(1536, 512, 128, 64, 128),
    ),
    "nemotron-8b": nemotron(32, 4096, 32, 32),
    "nemotron-15b": nemotron(32, 6144, 48, 8),
    "nemotron-22b": nemotron(40, 6144, 48, 48),
    "nemotron-340b": nemotron(96, 18_432, 96, 8),
}

OPT_350M = Transformer(24, 1024, 16, 4096, 50_272, 2048, tied=True, norm="layer", bias=True, learned_positions=2050)
GPT_NEO_2_7B = Transformer(
    32, 2560, 20, 10_240, 50_257, 2048, tied=True, norm="layer", bias=True, learned_positions=2048
)


def with_sequence(shape: Transformer, sequence: int) -> Transformer:
    """The same model trained on sequences of another length; learned positions follow it."""
    return replace(shape, sequence=sequence, learned_positions=sequence if shape.learned_positions else 0)
