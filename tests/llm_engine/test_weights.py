"""Conversions of weights, and tensors that are missing or do not fit."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from kernels.linear import DenseWeight, Int4Weight, Int8Weight
from llm_engine.config import UnsupportedModel
from llm_engine.model import load_model
from llm_engine.random_model import random_model
from llm_engine.transformers_peer import twin_of
from llm_engine.weights import ModelFileError, stack


@pytest.fixture
def folder(tmp_path):
    """A small Llama with float32 safetensors in one file."""
    twin_of(random_model("llama2", 1)).save_pretrained(tmp_path)
    return tmp_path


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_tensors(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


@pytest.mark.parametrize(
    ("dtype", "layer_form", "table_form"),
    [
        ("auto", DenseWeight, DenseWeight),
        ("float32", DenseWeight, DenseWeight),
        ("int8", Int8Weight, Int8Weight),
        ("int4", Int4Weight, Int8Weight),
    ],
)
def test_every_dtype_works_on_a_float_checkpoint(folder, dtype, layer_form, table_form):
    model = load_model(folder, dtype)
    assert isinstance(model.weights.layers[0].down, layer_form)
    assert isinstance(model.weights.embedding, table_form)
    assert model.dtype == torch.float32


def test_bfloat16_rounds_the_weights(folder):
    exact, rounded = load_model(folder).dense_state(), load_model(folder, "bfloat16").dense_state()
    for name, tensor in exact.items():
        assert torch.equal(rounded[name], tensor.bfloat16().float())


def test_an_unknown_dtype_is_refused_by_name(folder):
    with pytest.raises(UnsupportedModel, match="'int3'"):
        load_model(folder, "int3")


def test_sizes_that_have_no_groups_of_32_are_refused_for_int4(tmp_path):
    twin_of(random_model("llama2", 1, intermediate_size=100)).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match=r"int4 for .*down_proj.*multiple of 32"):
        load_model(tmp_path, "int4")


def test_a_missing_tensor_is_named(folder):
    change_tensors(folder, lambda tensors: tensors.pop("model.layers.1.self_attn.v_proj.weight"))
    with pytest.raises(ModelFileError, match=r"layers\.1\.self_attn\.v_proj\.weight is missing"):
        load_model(folder)


def test_a_tensor_of_the_wrong_shape_is_named_with_both_shapes(folder):
    change_config(folder, intermediate_size=128)
    with pytest.raises(ModelFileError, match=r"gate_proj.*\(160, 96\).*\(128, 96\)"):
        load_model(folder)


def test_parts_of_different_kinds_become_dense_when_stacked():
    dense = DenseWeight(torch.ones(2, 32))
    eight = Int8Weight(torch.ones(3, 32, dtype=torch.int8), torch.full((3, 1), 2.0))
    stacked = stack([dense, eight])
    assert isinstance(stacked, DenseWeight)
    assert stacked.w[:, 0].tolist() == [1, 1, 2, 2, 2]
