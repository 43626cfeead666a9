"""Folders with safetensors: what is read, and what is refused."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from llm_engine.config import UnsupportedModel
from llm_engine.model import load_model
from llm_engine.random_model import random_model
from llm_engine.transformers_peer import twin_of
from llm_engine.weights import ModelFileError
from tests.llm_engine.twin import one_sequence


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


@pytest.mark.parametrize("family", ["llama3", "mistral", "qwen2", "qwen3", "smollm2"])
def test_a_saved_model_gives_the_same_logits(tmp_path, family):
    model = random_model(family, 2)
    twin_of(model).save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    batch = one_sequence(list(range(20)))
    expected = model.forward(batch, model.new_arena(20))
    assert torch.equal(loaded.forward(batch, loaded.new_arena(20)), expected)


def test_shards_are_found_through_the_index(tmp_path):
    model = random_model("llama2", 1)
    twin_of(model).save_pretrained(tmp_path, max_shard_size="300KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    state, loaded = model.dense_state(), load_model(tmp_path).dense_state()
    assert all(torch.equal(state[name], loaded[name]) for name in state)


def test_a_tensor_of_whole_numbers_is_refused(folder):
    name = "model.layers.0.mlp.up_proj.weight"
    change_tensors(folder, lambda tensors: tensors.update({name: tensors[name].to(torch.int8)}))
    with pytest.raises(UnsupportedModel, match=r"up_proj.*int8"):
        load_model(folder)


def test_a_truncated_file_is_refused(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ModelFileError, match="not readable as safetensors"):
        load_model(folder)


def test_a_missing_shard_is_named(tmp_path):
    twin_of(random_model("llama2", 1)).save_pretrained(tmp_path, max_shard_size="300KB")
    gone = sorted(tmp_path.glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(ModelFileError, match=f"missing {gone.name}"):
        load_model(tmp_path)


def test_an_index_cannot_point_outside_its_folder(folder):
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "../../secret.safetensors"}}))
    with pytest.raises(ModelFileError, match="outside"):
        load_model(folder)


def test_pickled_weights_are_refused(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelFileError, match=r"only pickled weights \(pytorch_model\.bin\)"):
        load_model(folder)


def test_a_quantised_checkpoint_is_refused_by_method(folder):
    change_config(folder, quantization_config={"quant_method": "gptq"})
    with pytest.raises(UnsupportedModel, match="'gptq'"):
        load_model(folder)


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_a_config_that_is_no_json_object_is_refused(folder, content):
    (folder / "config.json").write_text(content)
    with pytest.raises(ModelFileError, match=r"config\.json"):
        load_model(folder)


def test_paths_without_a_model_are_refused(tmp_path):
    with pytest.raises(ModelFileError, match="no such file"):
        load_model(tmp_path / "nothing")
    with pytest.raises(ModelFileError, match=r"config\.json"):
        load_model(tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"x")
    with pytest.raises(ModelFileError, match="neither"):
        load_model(tmp_path / "model.onnx")
