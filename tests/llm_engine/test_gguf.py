"""GGUF files: what is kept without loss, and what damaged files raise."""

import struct
from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import quantize

from kernels.linear import DenseWeight, Int4Weight, Int8Weight
from llm_engine.config import UnsupportedModel
from llm_engine.gguf import GGUFTensors
from llm_engine.gguf_metadata import BadGGUF
from llm_engine.model import load_model
from llm_engine.random_model import random_model
from tests.llm_engine.twin import one_sequence

Kind = gguf.GGMLQuantizationType
HIDDEN = 64


def write(path, model, kind=Kind.F32, arch="llama", factors=None, extra=()):
    """`model` as a GGUF file, its matrices of `kind`, Llama's q/k rows stored pairwise."""
    config = model.config
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_positions)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope.theta)
    writer.add_vocab_size(config.vocab_size)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], config.num_layers)
    for name, tensor in model.dense_state().items():
        if name == "lm_head.weight" and config.tie_embeddings:
            continue
        values = tensor.numpy()
        if arch == "llama" and "q_proj" in name:
            values = pairwise(values, config.num_heads)
        if arch == "llama" and "k_proj" in name:
            values = pairwise(values, config.num_kv_heads)
        own = Kind.F32 if values.ndim == 1 else kind
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(stored, quantize(values, own), raw_dtype=own)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", np.array(factors, dtype=np.float32))
    for name, values in extra:
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def pairwise(values, num_heads):
    """The row order of llama.cpp's converter: (2i, 2i+1) instead of (i, i + D/2)."""
    shape = values.shape
    halves = values.reshape(num_heads, 2, shape[0] // num_heads // 2, *shape[1:])
    return halves.swapaxes(1, 2).reshape(shape)


def small(family="smollm2", **sizes):
    sizes = {"hidden_size": HIDDEN, "num_attention_heads": 4, "intermediate_size": 96} | sizes
    return random_model(family, 1, **sizes)


@pytest.mark.parametrize(
    ("family", "arch"),
    [("smollm2", "llama"), ("llama2", "llama"), ("qwen2", "qwen2"), ("qwen3", "qwen3")],
)
def test_a_float32_file_gives_the_same_logits(tmp_path, family, arch):
    model = small(family, max_position_embeddings=512)
    loaded = load_model(write(tmp_path / "m.gguf", model, arch=arch), "float32")
    batch = one_sequence(list(range(20)))
    expected = model.forward(batch, model.new_arena(20))
    torch.testing.assert_close(loaded.forward(batch, loaded.new_arena(20)), expected)


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        (Kind.Q4_0, Int4Weight),
        (Kind.Q4_1, Int4Weight),
        (Kind.Q8_0, Int8Weight),
        (Kind.F16, DenseWeight),
        (Kind.BF16, DenseWeight),
        (Kind.Q5_0, DenseWeight),
    ],
)
def test_values_of_every_kind_are_the_files_own(tmp_path, kind, form):
    model = small()
    path = write(tmp_path / "m.gguf", model, kind)
    source = GGUFTensors(path)
    reader = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    tensor = reader["blk.1.ffn_down.weight"]
    weight = source.linear("model.layers.1.mlp.down_proj.weight")
    assert isinstance(weight, form)
    expected = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
    assert torch.equal(weight.dense(), expected)
    # q rows come back in the order of halves
    q = source.linear("model.layers.0.self_attn.q_proj.weight").dense()
    original = model.dense_state()["model.layers.0.self_attn.q_proj.weight"]
    again = quantize(original.numpy(), kind)
    assert torch.equal(q, torch.from_numpy(gguf.dequantize(again, kind).copy()))


def test_llama3_frequencies_come_from_the_files_factors(tmp_path):
    factors = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    source = GGUFTensors(write(tmp_path / "m.gguf", small(), factors=factors))
    assert source.config.rope.kind == "factors"
    assert source.config.rope.factors == tuple(factors)


def test_the_configuration_survives_the_file(tmp_path):
    model = small("qwen3", max_position_embeddings=512)
    source = GGUFTensors(write(tmp_path / "m.gguf", model, arch="qwen3"))
    single = float(np.float32(model.config.rms_norm_eps))  # GGUF keeps it in float32
    assert source.config == replace(model.config, rms_norm_eps=single)


def test_every_truncation_is_a_typed_error(tmp_path):
    whole = write(tmp_path / "m.gguf", small()).read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in [*range(0, 400, 7), *range(400, len(whole) - 4, len(whole) // 50)]:
        cut.write_bytes(whole[:size])
        with pytest.raises(BadGGUF, match=r"cut\.gguf"):
            load_model(cut)


def test_flipped_bytes_are_a_typed_error_or_still_load(tmp_path):
    whole = bytearray(write(tmp_path / "m.gguf", small()).read_bytes())
    bad = tmp_path / "bad.gguf"
    num_refused = 0
    for place in range(0, 3000, 37):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        bad.write_bytes(damaged)
        try:
            load_model(bad)
        except ValueError:
            num_refused += 1
    assert num_refused > 10


def test_another_files_contents_are_refused(tmp_path):
    path = tmp_path / "not.gguf"
    path.write_bytes(b"RIFF" + bytes(100))
    with pytest.raises(BadGGUF, match="RIFF"):
        load_model(path)


def test_weights_that_are_not_finite_are_refused(tmp_path):
    path = write(tmp_path / "m.gguf", small(), Kind.Q8_0)
    tensor = {t.name: t for t in gguf.GGUFReader(path).tensors}["blk.0.ffn_up.weight"]
    data = bytearray(path.read_bytes())
    struct.pack_into("<H", data, tensor.data_offset, 0x7C00)  # the first scale: infinity
    path.write_bytes(data)
    with pytest.raises(BadGGUF, match=r"up_proj.* not finite"):
        load_model(path)


def test_a_kind_that_cannot_be_dequantised_is_refused_by_name(tmp_path):
    path = write(tmp_path / "m.gguf", small(), Kind.F32)
    data = bytearray(path.read_bytes())
    name = b"blk.0.ffn_up.weight"
    at = data.index(name) + len(name) + 4 + 16
    assert struct.unpack_from("<I", data, at) == (0,)
    struct.pack_into("<I", data, at, Kind.Q8_1)
    path.write_bytes(data)
    with pytest.raises((UnsupportedModel, BadGGUF), match=r"Q8_1|I8"):
        load_model(path)
