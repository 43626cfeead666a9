"""Random models are what they say and repeat themselves."""

import pytest
import torch

from llm_engine.config import UnsupportedModel
from llm_engine.random_model import RANDOM_FAMILIES, random_config, random_model


@pytest.mark.parametrize("family", RANDOM_FAMILIES)
def test_the_same_seed_gives_the_same_weights(family):
    first, second, other = (random_model(family, seed).dense_state() for seed in (5, 5, 6))
    assert all(torch.equal(first[name], second[name]) for name in first)
    name = "model.layers.1.mlp.down_proj.weight"
    assert not torch.equal(first[name], other[name])


def test_sizes_replace_the_familys_own():
    model = random_model("qwen3", 0, num_hidden_layers=3, vocab_size=50)
    assert len(model.weights.layers) == 3
    assert model.dense_state()["lm_head.weight"].shape == (50, 96)


def test_an_unknown_family_is_refused_by_name():
    with pytest.raises(UnsupportedModel, match="'bert'"):
        random_config("bert")
