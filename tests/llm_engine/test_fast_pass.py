"""When the CPU pass is used, and that the weights come back as they were."""

import pytest
import torch

from kernels.linear import Int4Weight
from llm_engine.fast_pass import FastPass
from llm_engine.random_model import random_model

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", ["float32", "int8", "int4"])
def test_packing_for_the_pass_keeps_the_effective_weights(dtype):
    model = random_model("qwen3", 1, dtype)
    again = random_model("qwen3", 1, dtype, tie_word_embeddings=False)
    first, second = model.dense_state(), again.dense_state()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_tied_weights_stay_tied():
    weights = random_model("smollm2", 1, "int4").weights
    assert weights.head is weights.embedding
    assert isinstance(weights.layers[0].down, Int4Weight)


def test_only_float32_activations_on_the_cpu_and_whole_groups_are_supported():
    weights = random_model("llama2", 1).weights
    assert FastPass.supports(weights, CPU, torch.float32)
    assert not FastPass.supports(weights, CPU, torch.bfloat16)
    assert not FastPass.supports(weights, torch.device("cuda"), torch.float32)
    odd = random_model("llama2", 1, intermediate_size=100).weights
    assert not FastPass.supports(odd, CPU, torch.float32)
