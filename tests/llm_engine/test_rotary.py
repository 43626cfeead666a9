"""Rotary frequencies against transformers'."""

import pytest
import torch
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from llm_engine.config import ModelConfig, RopeConfig
from llm_engine.random_model import random_config
from llm_engine.rotary import RotaryTable, attention_factor, inverse_frequencies

CPU = torch.device("cpu")
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 4.0,
    "original_max_position_embeddings": 256,
}


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.5},
        YARN,
        YARN | {"truncate": False, "beta_fast": 24.0, "beta_slow": 2.0},
        YARN | {"attention_factor": 0.9},
        random_config("llama3")["rope_parameters"],
    ],
)
def test_scaled_frequencies_equal_transformers(rope):
    raw = random_config("llama2", head_dim=64, rope_parameters=rope)
    ours = ModelConfig.from_hf(raw).rope
    theirs, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](AutoConfig.for_model(**raw), CPU)
    torch.testing.assert_close(inverse_frequencies(ours, 64), theirs, rtol=1e-6, atol=0)
    assert attention_factor(ours) == pytest.approx(factor)


def test_unscaled_frequencies_follow_the_formula():
    expected = [10_000.0 ** (-2 * i / 8) for i in range(4)]
    assert inverse_frequencies(RopeConfig(), 8).tolist() == pytest.approx(expected)


def test_factors_divide_each_frequency_by_its_own():
    rope = RopeConfig(kind="factors", factors=(1.0, 2.0, 4.0, 8.0))
    expected = inverse_frequencies(RopeConfig(), 8) / torch.tensor(rope.factors)
    assert torch.equal(inverse_frequencies(rope, 8), expected)


def test_the_table_grows_when_a_later_position_is_asked_for():
    table = RotaryTable(RopeConfig(), 8, CPU)
    positions = torch.tensor([0, 5000, 3])
    cos, sin = table.at(positions, 5000)
    angles = positions[:, None].float() * inverse_frequencies(RopeConfig(), 8)
    assert torch.equal(cos, angles.cos()) and torch.equal(sin, angles.sin())
