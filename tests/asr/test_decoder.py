from __future__ import annotations

import math

import numpy as np
import pytest

from asr.ct2_weights import Weights
from asr.decoder import BLOCK, TextDecoder, round_to_int8

RNG = np.random.default_rng(0)
HEADS, LAYERS, VOCABULARY, POSITIONS = 2, 2, 50, 12
D = 4 * BLOCK
INNER = 8 * BLOCK
# int8 weights and activations: each is off by up to 1/254 of its block's largest
TOLERANCE = 0.05


def random_weights() -> Weights:
    shapes = {
        "self_attention/linear_0": (3 * D, D),
        "self_attention/linear_1": (D, D),
        "attention/linear_0": (D, D),
        "attention/linear_1": (2 * D, D),
        "attention/linear_2": (D, D),
        "ffn/linear_0": (INNER, D),
        "ffn/linear_1": (D, INNER),
    }
    weights: Weights = {
        "decoder/activation": np.array(3, dtype=np.int8),
        "decoder/num_heads": np.array(HEADS, dtype=np.int16),
        "decoder/embeddings/weight": draw(VOCABULARY, D).astype(np.float16),
        "decoder/position_encodings/encodings": draw(POSITIONS, D),
        "decoder/layer_norm/gamma": 1 + draw(D),
        "decoder/layer_norm/beta": draw(D),
    }
    for layer in range(LAYERS):
        name = f"decoder/layer_{layer}"
        for part, shape in shapes.items():
            weights[f"{name}/{part}/weight"] = draw(*shape)
            weights[f"{name}/{part}/bias"] = draw(shape[0])
        for part in ("self_attention", "attention", "ffn"):
            weights[f"{name}/{part}/layer_norm/gamma"] = 1 + draw(D)
            weights[f"{name}/{part}/layer_norm/beta"] = draw(D)
    return weights


def draw(*shape: int) -> np.ndarray:
    return (0.1 * RNG.standard_normal(shape)).astype(np.float32)


def reference(weights: Weights, memory: np.ndarray, token_ids: list[int]) -> np.ndarray:
    """The decoder in a few lines of numpy."""

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return x * weights[f"{name}/gamma"] + weights[f"{name}/beta"]

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ weights[f"{name}/weight"].T + weights[f"{name}/bias"]

    def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | float) -> np.ndarray:
        q, k, v = (x.reshape(len(x), HEADS, -1).swapaxes(0, 1) for x in (q, k, v))
        scores = q @ k.swapaxes(1, 2) / math.sqrt(D // HEADS) + mask
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = shares / shares.sum(-1, keepdims=True) @ v
        return mixed.swapaxes(0, 1).reshape(-1, D)

    embeddings = weights["decoder/embeddings/weight"].astype(np.float32)
    x = embeddings[token_ids] + weights["decoder/position_encodings/encodings"][: len(token_ids)]
    causal = np.triu(np.full((len(x), len(x)), -np.inf), 1)
    gelu = np.vectorize(lambda y: y * (1 + math.erf(y / math.sqrt(2))) / 2)
    for layer in range(LAYERS):
        name = f"decoder/layer_{layer}"
        joint = linear(
            norm(x, f"{name}/self_attention/layer_norm"), f"{name}/self_attention/linear_0"
        )
        mixed = attend(*np.split(joint, 3, axis=1), causal)
        x = x + linear(mixed, f"{name}/self_attention/linear_1")
        queries = linear(norm(x, f"{name}/attention/layer_norm"), f"{name}/attention/linear_0")
        both = np.split(linear(memory, f"{name}/attention/linear_1"), 2, axis=1)
        x = x + linear(attend(queries, *both, 0.0), f"{name}/attention/linear_2")
        inner = gelu(linear(norm(x, f"{name}/ffn/layer_norm"), f"{name}/ffn/linear_0"))
        x = x + linear(inner, f"{name}/ffn/linear_1")
    return norm(x, "decoder/layer_norm") @ embeddings.T


def test_scores_are_those_of_the_plain_formula() -> None:
    weights, memory, token_ids = random_weights(), draw(30, D), [3, 49, 0, 7, 7]
    decoder = TextDecoder(weights)
    scores = decoder.extend(decoder.start(decoder.project(memory)), token_ids)
    expected = reference(weights, memory, token_ids)
    assert np.abs(scores - expected).max() < TOLERANCE * np.abs(expected).max()


@pytest.mark.parametrize("num_threads", [1, 2])
def test_tokens_read_together_score_as_those_read_one_by_one(num_threads: int) -> None:
    decoder = TextDecoder(random_weights(), num_threads)
    memory = decoder.project(draw(30, D))
    token_ids = [3, 49, 0, 7, 7, 21]
    together = decoder.extend(decoder.start(memory), token_ids)
    state = decoder.start(memory)
    apart = np.concatenate([decoder.extend(state, [token]) for token in token_ids])
    assert np.array_equal(together, apart)


def test_tokens_that_were_taken_back_leave_no_trace() -> None:
    decoder = TextDecoder(random_weights())
    memory = decoder.project(draw(30, D))
    state = decoder.start(memory)
    decoder.extend(state, [3, 49, 0, 7])
    state.truncate(2)
    assert state.num_tokens == 2
    fresh = decoder.start(memory)
    decoder.extend(fresh, [3, 49])
    assert np.array_equal(decoder.extend(state, [5]), decoder.extend(fresh, [5]))


def test_other_models_are_refused() -> None:
    with pytest.raises(KeyError):
        TextDecoder({})
    weights = random_weights()
    weights["decoder/activation"] = np.array(0, dtype=np.int8)
    with pytest.raises(KeyError, match="activation"):
        TextDecoder(weights)


def test_rounded_weights_are_off_by_half_a_step_at_most() -> None:
    weight = draw(5, 3 * BLOCK)
    weight[0, :BLOCK] = 0.0
    rounded, scales = round_to_int8(weight)
    restored = (rounded.astype(np.float32) - 128) * scales.reshape(5, 3, 1)
    off = np.abs(restored - weight.reshape(5, 3, BLOCK))
    assert (off <= 0.501 * scales.reshape(5, 3, 1)).all()
