"""The decoder's logits against transformers in float32."""

import pytest
import torch

from llm_engine.batch import Batch, ExtentView
from llm_engine.model import (
    DeviceUnavailable,
    default_num_threads,
    load_model,
    resolve_device,
)
from llm_engine.random_model import RANDOM_FAMILIES, random_model
from llm_engine.transformers_peer import twin_of
from tests.llm_engine.twin import one_sequence, twin_logits

TOLERANCE = 1e-3  # float32: order of summation through all layers


def ids(num_tokens, vocab_size=259, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab_size, (num_tokens,), generator=generator).tolist()


def difference(a, b):
    return (a - b).abs().max().item()


@pytest.mark.parametrize("family", RANDOM_FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "int8", "int4"])
def test_every_family_agrees_with_transformers(family, dtype):
    model = random_model(family, 1, dtype)
    expected = twin_logits(twin_of(model), ids(70))
    logits = model.forward(one_sequence(ids(70), first_row=3), model.new_arena(80))
    assert logits.dtype == torch.float32
    assert difference(logits, expected) < TOLERANCE
    assert expected.std() > 0.3  # not a comparison of nothing with nothing


def test_attention_bias_and_mlp_bias_agree_with_transformers():
    model = random_model("llama2", 1, attention_bias=True, mlp_bias=True)
    expected = twin_logits(twin_of(model), ids(9))
    logits = model.forward(one_sequence(ids(9)), model.new_arena(9))
    assert difference(logits, expected) < TOLERANCE


@pytest.mark.parametrize("family", ["smollm2", "mistral", "qwen3"])
def test_chunks_and_single_tokens_give_what_one_pass_gives(family):
    model = random_model(family, 2)
    tokens = ids(40)
    expected = twin_logits(twin_of(model), tokens)
    arena = model.new_arena(60)
    chunks, done = [], 0
    for size in (1, 20, 4, 1, 14):
        batch = one_sequence(tokens[done : done + size], first_row=11, num_cached=done)
        chunks.append(model.forward(batch, arena))
        done += size
    assert difference(torch.cat(chunks), expected) < TOLERANCE


def test_a_batch_of_sequences_gives_what_each_gives_alone():
    model = random_model("qwen2", 3)
    twin = twin_of(model)
    prompts = [ids(17, seed=1), ids(1, seed=2), ids(8, seed=3)]
    arena = model.new_arena(64)
    # Sequence 2 has its last rows in a second extent that lies before its first.
    extents = (
        (ExtentView(20, 17, 0),),
        (ExtentView(50, 1, 0),),
        (ExtentView(55, 5, 0), ExtentView(4, 3, 5)),
    )
    rows = [
        [extent.first_row + i for extent in own for i in range(extent.num_rows)] for own in extents
    ]
    batch = Batch(
        token_ids=torch.tensor(sum(prompts, [])),
        positions=torch.cat([torch.arange(len(prompt)) for prompt in prompts]),
        rows=torch.tensor(sum(rows, [])),
        query_start=(0, 17, 18, 26),
        extents=extents,
        logit_tokens=torch.tensor([25, 17, 16]),
    )
    logits = model.forward(batch, arena)
    expected = torch.stack([twin_logits(twin, prompt)[-1] for prompt in reversed(prompts)])
    assert difference(logits, expected) < TOLERANCE


def test_bfloat16_stays_near_float32():
    exact, model = random_model("llama3", 4), random_model("llama3", 4, "bfloat16")
    batch = one_sequence(ids(30))
    arena = model.new_arena(30)
    assert arena.dtype == torch.bfloat16
    logits = model.forward(batch, arena)
    expected = exact.forward(batch, exact.new_arena(30))
    assert 0 < difference(logits, expected) < 0.15  # 2^-8 relative per rounding, 2 layers


def test_int8_rows_of_keys_and_values_stay_near_float():
    model = random_model("smollm2", 5)
    batch = one_sequence(ids(30))
    expected = model.forward(batch, model.new_arena(30))
    logits = model.forward(batch, model.new_arena(30, torch.int8))
    assert 0 < difference(logits, expected) < 0.1


@pytest.mark.models
@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_the_default_model_agrees_with_transformers(smollm2_path, dtype):
    model = load_model(smollm2_path, dtype)
    tokens = ids(48, model.config.vocab_size)
    expected = twin_logits(twin_of(model), tokens)
    arena = model.new_arena(64)
    prefill = model.forward(one_sequence(tokens[:40], first_row=5), arena)
    assert difference(prefill, expected[:40]) < TOLERANCE
    for size, done in ((1, 40), (1, 41), (4, 42), (2, 46)):  # decode and verify
        chunk = one_sequence(tokens[done : done + size], first_row=5, num_cached=done)
        assert difference(model.forward(chunk, arena), expected[done : done + size]) < TOLERANCE


@pytest.mark.models
def test_a_safetensors_copy_of_the_default_model_agrees(smollm2_path, tmp_path):
    model = load_model(smollm2_path, "float32")
    twin_of(model).save_pretrained(tmp_path, max_shard_size="200MB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1  # sharded
    batch = one_sequence(ids(12, model.config.vocab_size))
    copy = load_model(tmp_path, "float32")
    logits = copy.forward(batch, copy.new_arena(12))
    assert difference(logits, model.forward(batch, model.new_arena(12))) < TOLERANCE
    assert difference(logits, twin_logits(twin_of(model), batch.token_ids.tolist())) < TOLERANCE


def test_threads_follow_the_environment(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert default_num_threads() == 3
    for nothing in ("", "0", "many"):
        monkeypatch.setenv("OMP_NUM_THREADS", nothing)
        assert default_num_threads() >= 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine without a GPU")
def test_a_device_that_is_not_there_is_refused_by_name(tmp_path):
    assert resolve_device("auto") == resolve_device("cpu") == torch.device("cpu")
    with pytest.raises(DeviceUnavailable, match="'cuda'.*use 'cpu'"):
        load_model(tmp_path, device="cuda")
