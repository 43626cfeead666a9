"""Model descriptions: what is read, and what is refused by name."""

import pytest

from llm_engine.config import BadModelConfig, ModelConfig, RopeConfig, UnsupportedModel
from llm_engine.random_model import RANDOM_FAMILIES, random_config

GGUF = {
    "general.architecture": "llama",
    "llama.block_count": 3,
    "llama.context_length": 512,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.vocab_size": 100,
}
NONE = frozenset()


@pytest.mark.parametrize("family", RANDOM_FAMILIES)
def test_every_family_is_read(family):
    raw = random_config(family)
    config = ModelConfig.from_hf(raw)
    assert config.family == raw["model_type"]
    assert config.num_layers == len(config.windows) == raw["num_hidden_layers"]
    assert config.qkv_bias == (raw["model_type"] == "qwen2")
    assert config.qk_norm == (raw["model_type"] == "qwen3")


def test_the_head_dimension_need_not_divide_the_hidden_size():
    config = ModelConfig.from_hf(random_config("qwen3", head_dim=48))
    assert config.head_dim == 48 and config.query_size == 4 * 48


def test_a_head_dimension_of_null_follows_from_the_sizes():
    assert ModelConfig.from_hf(random_config("llama2", head_dim=None)).head_dim == 24


def test_mistral_has_a_window_in_every_layer_and_qwen_from_a_layer_on():
    assert ModelConfig.from_hf(random_config("mistral")).windows == (16, 16)
    raw = random_config("qwen2", sliding_window=8, use_sliding_window=True, max_window_layers=1)
    assert ModelConfig.from_hf(raw).windows == (None, 8)
    kinds = ["sliding_attention", "full_attention"]
    assert ModelConfig.from_hf(raw | {"layer_types": kinds}).windows == (8, None)
    assert ModelConfig.from_hf(raw | {"use_sliding_window": False}).windows == (None, None)


def test_both_spellings_of_rope_scaling_are_read():
    new = random_config("llama3")
    scaling = {key: value for key, value in new["rope_parameters"].items() if key != "rope_theta"}
    old = random_config("llama2", rope_theta=500_000.0, rope_scaling=scaling)
    assert ModelConfig.from_hf(old).rope == ModelConfig.from_hf(new).rope
    legacy = random_config("llama2", rope_scaling={"type": "linear", "factor": 2.0})
    assert ModelConfig.from_hf(legacy).rope == RopeConfig(10_000.0, "linear", 2.0, 2048)


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ({"model_type": "gpt2"}, "'gpt2'"),
        ({"model_type": None}, "None"),
        ({"hidden_act": "gelu"}, "'gelu'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic'"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "'longrope'"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7}}, "mscale"),
        ({"partial_rotary_factor": 0.5}, "0.5"),
    ],
)
def test_what_the_decoder_cannot_do_is_refused_by_name(change, value):
    with pytest.raises(UnsupportedModel, match=value):
        ModelConfig.from_hf(random_config("llama2") | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": None}, "vocab_size must be a whole number"),
        ({"hidden_size": "96"}, "hidden_size must be .* '96'"),
        ({"num_key_value_heads": 3}, "cannot share 3"),
        ({"num_key_value_heads": 0}, "cannot share 0"),
        ({"num_hidden_layers": 0}, "num_layers is 0"),
        ({"head_dim": 7}, "head dimension is 7"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor must be a number"),
    ],
)
def test_impossible_values_are_refused_by_name(change, message):
    with pytest.raises(BadModelConfig, match=message):
        ModelConfig.from_hf(random_config("llama2") | change)


def test_a_windows_length_that_is_not_positive_is_refused():
    with pytest.raises(BadModelConfig, match="windows"):
        ModelConfig.from_hf(random_config("mistral", sliding_window=-1))


def test_gguf_metadata_is_read():
    config = ModelConfig.from_gguf(GGUF, frozenset({"blk.0.attn_q.bias"}))
    assert (config.num_layers, config.head_dim, config.vocab_size) == (3, 16, 100)
    assert config.qkv_bias and not config.qk_norm
    assert config.tie_embeddings  # no output.weight
    assert not ModelConfig.from_gguf(GGUF, frozenset({"output.weight"})).tie_embeddings


def test_gguf_rope_scaling_is_read():
    yarn = GGUF | {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 128,
    }
    rope = ModelConfig.from_gguf(yarn, NONE).rope
    assert (rope.kind, rope.factor, rope.original_context) == ("yarn", 4.0, 128)
    factors = tuple(float(i + 1) for i in range(8))
    assert ModelConfig.from_gguf(GGUF, NONE, factors).rope.factors == factors
    with pytest.raises(BadModelConfig, match="7 rope factors"):
        ModelConfig.from_gguf(GGUF, NONE, factors[:7])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"general.architecture": "mamba"}, UnsupportedModel, "'mamba'"),
        ({"llama.expert_count": 8}, UnsupportedModel, "expert_count 8"),
        ({"llama.rope.dimension_count": 8}, UnsupportedModel, "dimension_count 8"),
        ({"llama.rope.scaling.type": "longrope"}, UnsupportedModel, "'longrope'"),
        ({"llama.block_count": None}, BadModelConfig, "block_count"),
        ({"llama.attention.head_count": [4, 4]}, BadModelConfig, "head_count"),
    ],
)
def test_gguf_files_that_cannot_be_used_are_refused_by_name(change, error, message):
    with pytest.raises(error, match=message):
        ModelConfig.from_gguf(GGUF | change, NONE)
