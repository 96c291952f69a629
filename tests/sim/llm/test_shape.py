"""Shapes of published models: their parameters to the digit, and the FLOP that follow."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.sim.llm.hardware import ACCELERATORS, NetworkRates
from equipoise.sim.llm.hf_config import from_config
from equipoise.sim.llm.memory import memory
from equipoise.sim.llm.memory_stack import MemoryStack
from equipoise.sim.llm.published import GPT_NEO_2_7B, OPT_350M, SHAPES, with_sequence
from equipoise.sim.llm.quantities import ShardingPlan
from equipoise.sim.llm.shape import Layout, Transformer

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14_336,
    "vocab_size": 128_256,
    "max_position_embeddings": 8192,
}
LARGE = {"hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64, "intermediate_size": 28_672}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "intermediate_size": 18_432,
    "vocab_size": 129_280,
    "max_position_embeddings": 4096,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
QWEN3_MOE = {
    **LLAMA,
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151_936,
}
OPT = {"model_type": "opt", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
BLOOM = {"model_type": "bloom", "hidden_size": 14_336, "n_layer": 70, "n_head": 112, "seq_length": 2048}
FALCON = {"model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71}
NEOX = {"model_type": "gpt_neox", "hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64}
PUBLISHED = {
    "gpt2": (
        {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50_257},
        124_439_808,
    ),
    "llama-2-7b": (
        {**LLAMA, "num_key_value_heads": 32, "intermediate_size": 11_008, "vocab_size": 32_000},
        6_738_415_616,
    ),
    "llama-2-70b": ({**LLAMA, **LARGE, "vocab_size": 32_000}, 68_976_648_192),
    "llama-3-8b": (LLAMA, 8_030_261_248),
    "llama-3-70b": ({**LLAMA, **LARGE}, 70_553_706_496),
    "mixtral-8x7b": (
        {**LLAMA, "model_type": "mixtral", "vocab_size": 32_000, "num_local_experts": 8, "num_experts_per_tok": 2},
        46_702_792_704,
    ),
    "qwen3-30b-a3b": (QWEN3_MOE, 30_532_122_624),
    "deepseek-v3": (DEEPSEEK, 671_026_404_352),
    "opt-125m": ({**OPT, "ffn_dim": 3072, "vocab_size": 50_272, "max_position_embeddings": 2048}, 125_239_296),
    "bloom-176b": ({**BLOOM, "vocab_size": 250_880}, 176_247_271_424),
    "falcon-7b": ({**FALCON, "vocab_size": 65_024, "multi_query": True}, 6_921_720_704),
    "gpt-neox-20b": (
        {**NEOX, "intermediate_size": 24_576, "vocab_size": 50_432, "max_position_embeddings": 2048},
        20_554_567_680,
    ),
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_parameters_of_published_models_to_the_digit(name: str) -> None:
    config, parameters = PUBLISHED[name]
    assert from_config(json.dumps(config)).parameters == parameters


def config(
    kind: str, layers: int, hidden: int, heads: int, kv_heads: int, size: int, ffn: int, vocab: int, **more: object
):
    """A small config.json by the names of Hugging Face."""
    return {
        "model_type": kind,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": size,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "max_position_embeddings": 131_072,
        **more,
    }


LATENT = {k: DEEPSEEK[k] for k in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")}
ROUTED = {"n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_shared_experts": 1}
MAVERICK = {"num_local_experts": 128, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2}

NEXT = {"num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512}
NEXT |= {"shared_expert_intermediate_size": 512, "linear_num_key_heads": 16, "linear_key_head_dim": 128}
NEXT |= {"linear_num_value_heads": 32, "linear_value_head_dim": 128}
MAMBA = {"attention_head_dim": 128, "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128}
OTHERS = {
    "gpt_oss": (
        config("gpt_oss", 36, 2880, 64, 8, 64, 2880, 201_088, num_local_experts=128, num_experts_per_tok=4),
        117,
    ),
    "llama4": (
        {
            "model_type": "llama4",
            "text_config": config(
                "llama4_text", 48, 5120, 40, 8, 128, 8192, 202_048, **MAVERICK, intermediate_size_mlp=16_384
            ),
        },
        400,
    ),
    "gemma3": (config("gemma3", 62, 5376, 32, 16, 128, 21_504, 262_208, sliding_window=1024), 27.0),
    "glm4_moe": (
        config("glm4_moe", 92, 5120, 96, 8, 128, 12_288, 151_552, **ROUTED)
        | {"n_routed_experts": 160, "moe_intermediate_size": 1536, "first_k_dense_replace": 3, "use_qk_norm": True},
        355,
    ),
    "qwen3_next": (config("qwen3_next", 48, 2048, 16, 2, 256, 5120, 151_936, **NEXT), 80),
    "nemotron_h": (
        config("nemotron_h", 52, 4096, 32, 8, 128, 21_504, 131_072, **MAMBA)
        | {"hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"},
        8.1,
    ),
    "deepseek_v32": (
        config("deepseek_v32", 61, 7168, 128, 128, 128, 18_432, 129_280, **ROUTED, **LATENT)
        | {"first_k_dense_replace": 3, "index_topk": 2048},
        671,
    ),
    "kimi_k2": (
        config("kimi_k2", 61, 7168, 64, 64, 128, 18_432, 163_840, **ROUTED, **LATENT)
        | {"first_k_dense_replace": 1, "n_routed_experts": 384},
        1026,
    ),
    "minimax": (
        config("minimax", 80, 6144, 64, 8, 128, 9216, 200_064, num_local_experts=32, num_experts_per_tok=2),
        456,
    ),
    "minimax_m2": (
        config("minimax_m2", 62, 3072, 48, 8, 128, 1536, 200_064, num_local_experts=256, num_experts_per_tok=8),
        229,
    ),
    "phi3": (config("phi3", 40, 5120, 40, 10, 128, 17_920, 100_352), 14.7),
}
"""Of each family a config and the billions of parameters that its authors publish."""


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_parameters_of_further_families_as_published(name: str) -> None:
    made, billions = OTHERS[name]
    shape = from_config(json.dumps(made), 8192)
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.01)
    assert 0 < shape.train_flop_per_token() < 6.5 * shape.parameters + 6 * shape.layers * 8192 * shape.query_width


def test_local_and_linear_layers_attend_to_less() -> None:
    """Five of six of Gemma 3's layers see 1,024 of 8,192 tokens: (51 or 52 x 1,024 x (2 - 1/8) + 10 x 8,192) / 62."""
    gemma = from_config(json.dumps(OTHERS["gemma3"][0]), 8192)
    assert gemma.attended == pytest.approx((52 * 1024 * (2 - 1 / 8) + 10 * 8192) / 62)
    assert from_config(json.dumps(OTHERS["qwen3_next"][0]), 8192).linear_layers == 36
    assert from_config(json.dumps(OTHERS["minimax"][0]), 8192).local_layers == 70


def test_a_further_token_costs_a_layer_and_a_head() -> None:
    plain = from_config(json.dumps(DEEPSEEK))
    more = replace(plain, mtp_layers=1)
    assert more.parameters - plain.parameters == plain.moe_layer_parameters
    layers = ShardingPlan(more, Layout(pipeline=4), ACCELERATORS["H100"], NetworkRates(8, 400e9)).stage_layers()
    assert layers == (16, 15, 15, 16)
    assert more.forward_flop_per_token().head == 2 * plain.forward_flop_per_token().head


# Of GPT-style models 12 l h^2 + 13 l h + (V + s) h + 2 h (Narayanan et al. 2021, section 5.1, and the last norm).
SIZES = {
    "mpt-125m": (125_311_488, 12, 2048),
    "mpt-350m": (355_985_408, 16, 2048),
    "mpt-760m": (760_470_528, 12, 2048),
    "mpt-1b": (1_315_950_592, 16, 2048),
    "mpt-3b": (2_651_837_440, 20, 2048),
    "mpt-7b": (6_658_859_008, 32, 2048),
    "mpt-13b": (12_853_954_560, 40, 2048),
    "mpt-30b": (29_975_214_080, 56, 2048),
    "mpt-70b": (64_862_437_376, 64, 2048),
    "gpt3-5b": (5_051_228_160, 32, 2048),
    "gpt3-20b": (20_262_014_976, 48, 2048),
    "gpt3-175b": (174_615_846_912, 96, 2048),
    "megatron-22b": (22_074_273_792, 64, 2048),
    "turing-530b": (529_600_819_200, 128, 2048),
    "megatron-1t": (1_008_038_758_400, 160, 2048),
    "llama2-7b": (6_738_415_616, 32, 4096),
    "llama2-13b": (13_015_864_320, 40, 4096),
    "llama2-70b": (68_976_648_192, 64, 4096),
    "llama3-8b": (8_030_261_248, 32, 8192),
    "llama3-70b": (70_553_706_496, 64, 8192),
    "llama3-405b": (405_853_388_800, 128, 8192),
    "nemotron-8b": (8_540_135_424, 32, 4096),
    "nemotron-15b": (15_628_775_424, 48, 4096),
    "nemotron-22b": (21_266_116_608, 48, 4096),
    "nemotron-340b": (341_029_195_776, 96, 4096),
    "qwen3-32b": (32_762_123_264, 64, 4096),
    "qwen3-30b-a3b": (30_532_122_624, 32, 4096),
    "qwen3-235b-a22b": (235_093_634_560, 64, 4096),
    "deepseek-v3": (671_026_404_352, 128, 4096),
}
"""Parameters, heads and the sequence that a model was trained on."""


def test_shapes_of_published_models_are_as_large_as_they_are() -> None:
    assert {n: (s.parameters, s.heads, s.sequence) for n, s in SHAPES.items()} == SIZES
    assert (OPT_350M.parameters, OPT_350M.sequence) == (355_889_152, 2048)
    assert (GPT_NEO_2_7B.parameters, GPT_NEO_2_7B.sequence) == (2_651_553_280, 2048)
    longer = with_sequence(SHAPES["gpt3-5b"], 4096)
    assert longer.parameters == 5_051_228_160 + 2048 * 4096
    assert with_sequence(SHAPES["llama2-7b"], 8192).parameters == 6_738_415_616


def test_gpt3_has_its_175_billion() -> None:
    shape = Transformer(
        96, 12_288, 96, 49_152, 50_257, 2048, tied=True, norm="layer", bias=True, learned_positions=2048
    )
    assert shape.parameters == 174_604_259_328


@given(
    layers=st.integers(1, 40),
    heads=st.sampled_from([4, 8, 16]),
    size=st.sampled_from([64, 128]),
    sequence=st.sampled_from([512, 2048, 8192]),
    gated=st.booleans(),
)
def test_training_flop_are_six_per_parameter_and_the_attention_term(
    layers: int, heads: int, size: int, sequence: int, gated: bool
) -> None:
    hidden = heads * size
    shape = Transformer(layers, hidden, heads, 4 * hidden, 1000, sequence, gated=gated, tied=True)
    attention = 6.0 * layers * sequence * hidden
    norms = 6.0 * (layers * 2 * hidden + hidden)
    assert shape.train_flop_per_token() == pytest.approx(6.0 * shape.parameters - norms + attention)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "hidden_size: missing"),
        ({"hidden_size": 4095}, "hidden: 4095 is not a multiple of heads"),
        ({"num_key_value_heads": 7}, "heads: 32 is not a multiple of kv_heads"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers: '32' is not a whole number"),
        ({"model_type": "mamba"}, "model_type: 'mamba' is not known; allowed: bloom"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings: 1 is not true or false"),
    ],
)
def test_a_wrong_config_is_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        from_config(json.dumps({**LLAMA, **change}))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"data": 3, "global_batch": 8}, "global_batch: 8 is not a multiple"),
        ({"zero": 4}, "zero: 4 is not"),
        ({"virtual": 2, "pipeline": 2}, "virtual: 2 is not possible with"),
        ({"recompute": "half"}, "recompute: 'half' is not known; allowed: none, selective, full"),
        ({"tensor": 0}, "tensor: 0 is not at least 1"),
    ],
)
def test_a_wrong_layout_is_named(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Layout(**wrong)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize(("virtual", "stage", "held"), [(1, 0, 4.0), (1, 3, 1.0), (4, 0, 4.75), (4, 3, 1.1875)])
def test_interleaved_stages_hold_more_micro_batches(virtual: int, stage: int, held: float) -> None:
    """By 1 + (p - 1) / (p v), with p stages of v chunks (Narayanan et al. 2021)."""
    schedule = "interleaved" if virtual > 1 else "1f1b"
    layout = Layout(pipeline=4, virtual=virtual, schedule=schedule, global_batch=64)
    shape = Transformer(16, 8, 2, 8, 10, 32)
    keeps = MemoryStack(0, 0, 1.0, 0, 0, 0, 0, 0, 0)  # a byte of each of the 4 x 32 x 8 elements a micro-batch
    found = memory(ShardingPlan(shape, layout, ACCELERATORS["H100"], NetworkRates(8, 1e9)), keeps)
    assert found.stages[stage].activations == held * 4 * 32 * 8


PLAIN = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 10,
    "intermediate_size": 20,
    "max_position_embeddings": 64,
}


def test_numbers_and_texts_that_are_no_config() -> None:
    llama = PLAIN | {"model_type": "llama"}
    assert from_config(json.dumps(llama | {"vocab_size": 10**15})).vocab == 10**15
    for change, said in (
        ({"vocab_size": 10**15 + 1}, "vocab_size: 1000000000000001 is not a whole number from 0 to 10"),
        ({"vocab_size": True}, "vocab_size: True is not a whole number"),
        ({"vocab_size": -1}, "vocab_size: -1 is not a whole number"),
        (
            {
                "num_local_experts": 2,
                "num_experts_per_tok": 1,
                "moe_intermediate_size": 4,
                "shared_expert_intermediate_size": 6,
            },
            "shared_expert_intermediate_size: 6 is not a multiple of 4",
        ),
        ({"model_type": "opt", "ffn_dim": 8, "word_embed_proj_dim": 4}, "word_embed_proj_dim: only the width"),
    ):
        with pytest.raises(ValueError, match=said):
            from_config(json.dumps(llama | change))
    for text, said in (("[]", "must be a mapping of keys"), ('{"a":\n1,}', r"config.json:2:3: ")):
        with pytest.raises(ValueError, match=said):
            from_config(text)
