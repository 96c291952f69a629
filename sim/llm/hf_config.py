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
    inner = config.get("text_config")
    if isinstance(inner, dict):  # of a model that also takes images: its language part
        config = {**inner, "model_type": family}
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


def _common(config: Config, sequence: int | None, *, tied: bool, longest: int | None = None) -> dict[str, Any]:
    """What every family says; tied, longest: where its file leaves them out."""
    positions = ("max_position_embeddings", "n_positions", "n_ctx", "seq_length")
    return {
        "layers": _count(config, "num_hidden_layers", "n_layer"),
        "hidden": _count(config, "hidden_size", "n_embd", "n_embed"),
        "heads": _count(config, "num_attention_heads", "n_head"),
        "vocab": _count(config, "vocab_size"),
        "sequence": sequence or _count(config, *positions, default=longest),
        "tied": _flag(config, "tie_word_embeddings", tied),
    }


def _llama(config: Config, sequence: int | None) -> Transformer:
    """Llama, Mistral, Qwen, Phi-3, Gemma 3, GLM-4.5, gpt-oss and their like: RMS norms, rotary positions, gated."""
    family = config["model_type"]
    common = _common(config, sequence, tied=family.startswith("gemma3"))
    layers, hidden, heads, length = (common[name] for name in ("layers", "hidden", "heads", "sequence"))
    experts = _count(config, "num_local_experts", "num_experts", "n_routed_experts", default=0)
    ffn = _count(config, "intermediate_size", default=0)
    own = ffn if family in ("mixtral", "gpt_oss", "llama4", "llama4_text", "minimax", "minimax_m2") else 0
    expert_ffn = _count(config, "moe_intermediate_size", default=own) if experts else 0
    shared, dense, dense_ffn = _beside(config, family, layers, expert_ffn) if experts else (0, 0, ffn)
    window, local = _window(config, family, layers, length)
    linear, weights = _linear(config, family, layers, hidden, heads)
    return Transformer(
        **common,
        kv_heads=_count(config, "num_key_value_heads", default=heads),
        head_size=_count(config, "head_dim", default=0),
        ffn=dense_ffn if dense or not experts else 0,
        gated=True,
        norms=4 if family.startswith("gemma3") else 2,
        bias=family == "gpt_oss",
        qkv_bias=family != "gpt_oss" and _flag(config, "attention_bias", family in ("qwen2", "qwen2_moe")),
        qk_norm=_flag(config, "use_qk_norm", False) if family == "glm4_moe" else family in _QK_NORM,
        experts=experts,
        top_k=_count(config, "num_experts_per_tok", "experts_per_token") if experts else 0,
        expert_ffn=expert_ffn,
        shared_experts=shared,
        dense_layers=dense,
        window=window,
        local_layers=local,
        linear_layers=linear,
        linear_weights=weights,
    )


_QK_NORM = ("qwen3", "qwen3_moe", "qwen3_next", "gemma3", "gemma3_text")


def _beside(config: Config, family: str, layers: int, expert_ffn: int) -> tuple[int, int, int]:
    """Shared experts, layers without experts and their feed-forward's width, of a model with experts."""
    if family.startswith("llama4"):
        every = _count(config, "interleave_moe_layer_step", default=1)
        return 1, layers - layers // every, _count(config, "intermediate_size_mlp", default=0)
    shared = _count(config, "shared_expert_intermediate_size", default=0)
    if shared and expert_ffn and shared % expert_ffn:
        raise ValueError(f"shared_expert_intermediate_size: {shared} is not a multiple of {expert_ffn}")
    many = shared // expert_ffn if shared and expert_ffn else _count(config, "n_shared_experts", default=0)
    return many, _count(config, "first_k_dense_replace", default=0), _count(config, "intermediate_size", default=0)


def _window(config: Config, family: str, layers: int, length: int) -> tuple[int, int]:
    """Tokens of a local layer's window and number of such layers; a window as long as the sequence is none."""
    kinds = config.get("layer_types")
    near = kinds.count("sliding_attention") if isinstance(kinds, list) else None
    if near is None and family.startswith("gemma3"):
        every = _count(config, "sliding_window_pattern", default=6)
        near = layers - layers // every
    elif near is None and family == "gpt_oss":
        near = layers - layers // 2
    elif near is None:
        used = _flag(config, "use_sliding_window", family in ("mistral", "phi3"))
        near = layers if used and family in ("mistral", "phi3", "qwen2", "qwen2_moe") else 0
    if family in ("minimax", "qwen3_next"):
        return STATE, _linear_layers(config, family, layers)
    window = _count(config, "sliding_window", default=0) if near else 0
    return (window, near) if 0 < window < length else (0, 0)


STATE = 128
"""Keys that a head of linear attention holds, which a token meets as it would so many tokens of a window."""


def _linear_layers(config: Config, family: str, layers: int) -> int:
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        return kinds.count("linear_attention")
    types = config.get("attn_type_list")
    if isinstance(types, list):  # MiniMax: 0 linear, 1 full
        return types.count(0)
    every = _count(config, "full_attention_interval", default=4 if family == "qwen3_next" else 8)
    return layers - layers // every


def _linear(config: Config, family: str, layers: int, hidden: int, heads: int) -> tuple[int, int]:
    """Layers of linear attention and the parameters of their projections."""
    if family == "qwen3_next":
        keys = _count(config, "linear_num_key_heads") * _count(config, "linear_key_head_dim")
        values = _count(config, "linear_num_value_heads") * _count(config, "linear_value_head_dim")
        weights = hidden * (2 * keys + 3 * values + 2 * _count(config, "linear_num_value_heads"))
        return _linear_layers(config, family, layers), weights
    if family == "minimax":  # queries, keys, values, a gate and the output, of all heads
        return _linear_layers(config, family, layers), 5 * hidden * heads * _count(config, "head_dim")
    return 0, 0


def _hybrid(config: Config, sequence: int | None) -> Transformer:
    """Nemotron-H: a pattern of Mamba-2 (M), attention (*) and feed-forwards (-); as many layers as feed-forwards."""
    pattern, hidden = config.get("hybrid_override_pattern"), _count(config, "hidden_size")
    if not isinstance(pattern, str) or set(pattern) - set("M*-") or not pattern.count("-"):
        raise ValueError("hybrid_override_pattern: only M, * and - are modelled, with at least one -")
    layers, heads = pattern.count("-"), _count(config, "num_attention_heads")
    size = _count(config, "attention_head_dim", "head_dim")
    kv_heads = _count(config, "num_key_value_heads")
    wide = _count(config, "mamba_num_heads") * _count(config, "mamba_head_dim")
    state = 2 * _count(config, "n_groups") * _count(config, "ssm_state_size")
    mamba = hidden * (3 * wide + state + _count(config, "mamba_num_heads"))
    full = 2 * hidden * size * (heads + kv_heads)
    mixers = pattern.count("M") * mamba + pattern.count("*") * full
    local = max(0, layers - pattern.count("*"))
    return Transformer(
        **(_common({**config, "num_hidden_layers": layers}, sequence, tied=False)),
        kv_heads=kv_heads,
        head_size=size,
        ffn=_count(config, "intermediate_size"),
        window=STATE if local else 0,
        local_layers=local,
        linear_layers=layers,
        linear_weights=mixers // layers,
    )


def _deepseek(config: Config, sequence: int | None) -> Transformer:
    """DeepSeek-V2 and -V3, Kimi K2: latent attention, shared and routed experts, first layers dense.

    V3.2 attends to the chosen `index_topk` tokens; the parameters of its index (0.1 %) are left out.
    """
    common, chosen = _common(config, sequence, tied=False), _count(config, "index_topk", default=0)
    near = 0 < chosen < common["sequence"]
    return Transformer(
        **common,
        window=chosen if near else 0,
        local_layers=common["layers"] if near else 0,
        head_size=_count(config, "v_head_dim"),
        ffn=_count(config, "intermediate_size"),
        gated=True,
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
    common, positions = _common(config, sequence, tied=True), _count(config, "n_positions", "n_ctx")
    ffn = _count(config, "n_inner", default=4 * common["hidden"])
    return Transformer(**common, ffn=ffn, norm="layer", bias=True, learned_positions=positions)


def _neox(config: Config, sequence: int | None) -> Transformer:
    ffn = _count(config, "intermediate_size")
    return Transformer(**_common(config, sequence, tied=False), ffn=ffn, norm="layer", bias=True)


def _opt(config: Config, sequence: int | None) -> Transformer:
    """OPT; its table of positions has two rows more than its longest sequence."""
    common, positions = _common(config, sequence, tied=True), _count(config, "max_position_embeddings")
    if _count(config, "word_embed_proj_dim", default=common["hidden"]) != common["hidden"]:
        raise ValueError("word_embed_proj_dim: only the width of hidden_size is modelled")
    ffn = _count(config, "ffn_dim")
    return Transformer(**common, ffn=ffn, norm="layer", bias=True, learned_positions=positions + 2)


def _bloom(config: Config, sequence: int | None) -> Transformer:
    """BLOOM: ALiBi instead of positions, and a norm behind the embedding."""
    common = _common(config, sequence, tied=True)
    return Transformer(**common, ffn=4 * common["hidden"], norm="layer", bias=True, embedding_norm=True)


def _falcon(config: Config, sequence: int | None) -> Transformer:
    """Falcon: attention and feed-forward side by side, behind one norm or (new architecture) two."""
    common, new = _common(config, sequence, tied=True, longest=2048), _flag(config, "new_decoder_architecture", False)
    kv_heads = _count(config, "num_kv_heads", "n_head_kv", default=common["heads"]) if new else common["heads"]
    if not new and _flag(config, "multi_query", True):
        kv_heads = 1
    return Transformer(
        **common,
        kv_heads=kv_heads,
        ffn=_count(config, "ffn_hidden_size", default=4 * common["hidden"]),
        norm="layer",
        norms=1 if _flag(config, "parallel_attn", True) and not new else 2,
        bias=_flag(config, "bias", False),
    )


_FAMILIES: dict[str, Callable[[Config, int | None], Transformer]] = {
    **dict.fromkeys(("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next"), _llama),
    **dict.fromkeys(("phi3", "gemma3", "gemma3_text", "llama4", "llama4_text", "glm4_moe", "gpt_oss"), _llama),
    **dict.fromkeys(("minimax", "minimax_m2"), _llama),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2"), _deepseek),
    "nemotron_h": _hybrid,
    "gpt2": _gpt2,
    "gpt_neox": _neox,
    "opt": _opt,
    "bloom": _bloom,
    "falcon": _falcon,
}
