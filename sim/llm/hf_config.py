"""Reads a transformer's shape from a Hugging Face style config.json.

Every family says by a key which of two ways it is built (biases, norm, gate, positions); what a file may leave out
is the family's documented default, listed in `_FAMILIES`. An unknown family is an error, not a guess.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from equipoise.sim.llm.shape import LatentAttention, Transformer

Config = Mapping[str, Any]
MOST = 10**15


def from_config(text: str, sequence: int | None = None) -> Transformer:
    """The shape described by the text of a config.json, trained on `sequence` tokens (default: its maximum).

    Raises ValueError naming the key that is missing, of the wrong type or not allowed.
    """
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"config.json:{error.lineno}:{error.colno}: {error.msg}") from None
    except RecursionError:
        raise ValueError("config.json: nested too deeply") from None
    if not isinstance(config, dict):
        raise ValueError("config.json: must be a mapping of keys")
    family = config.get("model_type")
    if family not in _FAMILIES:
        raise ValueError(f"model_type: {family!r} is not known; allowed: {', '.join(sorted(_FAMILIES))}")
    return _FAMILIES[family](config, sequence)


def _count(config: Config, *names: str, default: int | None = None) -> int:
    """The value of the first of these keys that is present, as a whole number >= 0; null counts as absent."""
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST:
            raise ValueError(f"{name}: {repr(value)[:40]} is not a whole number from 0 to {MOST}")
        return value
    if default is None:
        raise ValueError(f"{names[0]}: missing")
    return default


def _flag(config: Config, name: str, default: bool) -> bool:
    value = config.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ValueError(f"{name}: {value!r} is not true or false")
    return value


def _llama(config: Config, sequence: int | None) -> Transformer:
    """Llama, Mistral, Mixtral, Qwen2, Qwen3 and their expert models: RMS norms, rotary positions, gated."""
    hidden, heads = _count(config, "hidden_size"), _count(config, "num_attention_heads")
    experts = _count(config, "num_local_experts", "num_experts", default=0)
    mixtral = config["model_type"] == "mixtral"
    ffn = _count(config, "intermediate_size", default=0)
    shared = _count(config, "shared_expert_intermediate_size", default=0)
    expert_ffn = _count(config, "moe_intermediate_size", default=ffn if mixtral else 0) if experts else 0
    if shared and expert_ffn and shared % expert_ffn:
        raise ValueError(f"shared_expert_intermediate_size: {shared} is not a multiple of {expert_ffn}")
    return Transformer(
        layers=_count(config, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=_count(config, "num_key_value_heads", default=heads),
        head_size=_count(config, "head_dim", default=0),
        ffn=0 if experts else ffn,
        vocab=_count(config, "vocab_size"),
        sequence=sequence or _count(config, "max_position_embeddings"),
        gated=True,
        tied=_flag(config, "tie_word_embeddings", False),
        qkv_bias=_flag(config, "attention_bias", config["model_type"] in ("qwen2", "qwen2_moe")),
        qk_norm=config["model_type"] in ("qwen3", "qwen3_moe"),
        experts=experts,
        top_k=_count(config, "num_experts_per_tok") if experts else 0,
        expert_ffn=expert_ffn,
        shared_experts=shared // expert_ffn if shared and expert_ffn else 0,
    )


def _deepseek(config: Config, sequence: int | None) -> Transformer:
    """DeepSeek-V2 and -V3: latent attention, shared and routed experts, first layers dense."""
    return Transformer(
        layers=_count(config, "num_hidden_layers"),
        hidden=_count(config, "hidden_size"),
        heads=_count(config, "num_attention_heads"),
        head_size=_count(config, "v_head_dim"),
        ffn=_count(config, "intermediate_size"),
        vocab=_count(config, "vocab_size"),
        sequence=sequence or _count(config, "max_position_embeddings"),
        gated=True,
        tied=_flag(config, "tie_word_embeddings", False),
        experts=_count(config, "n_routed_experts"),
        top_k=_count(config, "num_experts_per_tok"),
        expert_ffn=_count(config, "moe_intermediate_size"),
        shared_experts=_count(config, "n_shared_experts", default=0),
        dense_layers=_count(config, "first_k_dense_replace", default=0),
        latent=LatentAttention(
            query_rank=_count(config, "q_lora_rank", default=0),
            key_value_rank=_count(config, "kv_lora_rank"),
            nope_size=_count(config, "qk_nope_head_dim"),
            rope_size=_count(config, "qk_rope_head_dim"),
            value_size=_count(config, "v_head_dim"),
        ),
    )


def _gpt2(config: Config, sequence: int | None) -> Transformer:
    hidden, positions = _count(config, "n_embd"), _count(config, "n_positions", "n_ctx")
    return Transformer(
        layers=_count(config, "n_layer"),
        hidden=hidden,
        heads=_count(config, "n_head"),
        ffn=_count(config, "n_inner", default=4 * hidden),
        vocab=_count(config, "vocab_size"),
        sequence=sequence or positions,
        tied=_flag(config, "tie_word_embeddings", True),
        norm="layer",
        bias=True,
        learned_positions=positions,
    )


def _neox(config: Config, sequence: int | None) -> Transformer:
    return Transformer(
        layers=_count(config, "num_hidden_layers"),
        hidden=_count(config, "hidden_size"),
        heads=_count(config, "num_attention_heads"),
        ffn=_count(config, "intermediate_size"),
        vocab=_count(config, "vocab_size"),
        sequence=sequence or _count(config, "max_position_embeddings"),
        tied=_flag(config, "tie_word_embeddings", False),
        norm="layer",
        bias=True,
    )


def _opt(config: Config, sequence: int | None) -> Transformer:
    """OPT; its table of positions has two rows more than its longest sequence."""
    hidden, positions = _count(config, "hidden_size"), _count(config, "max_position_embeddings")
    if _count(config, "word_embed_proj_dim", default=hidden) != hidden:
        raise ValueError("word_embed_proj_dim: only the width of hidden_size is modelled")
    return Transformer(
        layers=_count(config, "num_hidden_layers"),
        hidden=hidden,
        heads=_count(config, "num_attention_heads"),
        ffn=_count(config, "ffn_dim"),
        vocab=_count(config, "vocab_size"),
        sequence=sequence or positions,
        tied=_flag(config, "tie_word_embeddings", True),
        norm="layer",
        bias=True,
        learned_positions=positions + 2,
    )


def _bloom(config: Config, sequence: int | None) -> Transformer:
    """BLOOM: ALiBi instead of positions, and a norm behind the embedding."""
    hidden = _count(config, "hidden_size", "n_embed")
    return Transformer(
        layers=_count(config, "n_layer", "num_hidden_layers"),
        hidden=hidden,
        heads=_count(config, "n_head", "num_attention_heads"),
        ffn=4 * hidden,
        vocab=_count(config, "vocab_size"),
        sequence=sequence or _count(config, "seq_length"),
        tied=_flag(config, "tie_word_embeddings", True),
        norm="layer",
        bias=True,
        embedding_norm=True,
    )


def _falcon(config: Config, sequence: int | None) -> Transformer:
    """Falcon: attention and feed-forward side by side, behind one norm or (new architecture) two."""
    hidden, heads = _count(config, "hidden_size"), _count(config, "num_attention_heads", "n_head")
    new = _flag(config, "new_decoder_architecture", False)
    kv_heads = _count(config, "num_kv_heads", "n_head_kv", default=heads) if new else heads
    if not new and _flag(config, "multi_query", True):
        kv_heads = 1
    return Transformer(
        layers=_count(config, "num_hidden_layers", "n_layer"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        ffn=_count(config, "ffn_hidden_size", default=4 * hidden),
        vocab=_count(config, "vocab_size"),
        sequence=sequence or _count(config, "max_position_embeddings", default=2048),
        tied=_flag(config, "tie_word_embeddings", True),
        norm="layer",
        norms=1 if _flag(config, "parallel_attn", True) and not new else 2,
        bias=_flag(config, "bias", False),
    )


_FAMILIES: dict[str, Callable[[Config, int | None], Transformer]] = {
    **dict.fromkeys(("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"), _llama),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), _deepseek),
    "gpt2": _gpt2,
    "gpt_neox": _neox,
    "opt": _opt,
    "bloom": _bloom,
    "falcon": _falcon,
}
