"""Whisper's text decoder as a network of its own, for the CPU.

CTranslate2's decoder takes one token at a time and packs its int8 weights anew for each. Here they
are packed once, and several tokens are scored in one pass: a likely text is checked rather than
written again (`greedy.py`).

Shapes: N tokens of a pass, P tokens before it, T rows of encoder output, H heads, D model width,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from asr.ct2_weights import Weights, float_matrix
from asr.onnx import OnnxModel
from asr.onnx_graph import CONTRIB_DOMAIN, Graph

BLOCK = 32  # weights that share a scale
INT8_PRODUCTS = 4  # MatMulNBits: activations are rounded to int8 per row and block, too
NORM_EPSILON = 1e-5
# The output layer is half of a pass; keys and values of the encoder's rows are a tenth of a decode.
# Both take integers with a scale per row, which is a third faster for one row and twice as fast for
# eight; tokens that may be the likeliest are then scored with the file's weights. Seven bits of
# activation: products of pairs then fit the 16 bits that AVX2 has for them.
WEIGHT_STEPS, ACTIVATION_STEPS = 127, 63
RESCORE_WITHIN = 5.0  # nats; several times what rounding and the repetition penalty move
# So that a token's scores are the same, to the last bit, whatever it is read with: rows come in
# pairs and keys in steps for which the library adds up in one order.
EVEN_ROWS, KEY_STEP = 2, 32
GELU = 3  # CTranslate2's number for it

Rows = np.ndarray
# Keys, then values, layer after layer. Of tokens: each [H, P, D / H]. Of encoder output, where the
# keys are read far more often than written: keys [H, D / H, T], values [H, T, D / H].
KeysValues = tuple[np.ndarray, ...]


@dataclass(slots=True)
class DecoderState:
    """What the decoder has read: the encoder's rows and `num_tokens` tokens."""

    memory: KeysValues
    past: KeysValues
    num_tokens: int = 0

    def truncate(self, num_tokens: int) -> None:
        """Forget the tokens after the first `num_tokens`."""
        if num_tokens >= self.num_tokens:
            return
        self.num_tokens = num_tokens
        self.past = tuple(np.ascontiguousarray(kept[:, :num_tokens]) for kept in self.past)


class TextDecoder:
    """May be used from several threads at once.

    Raises:
        KeyError: `weights` are not those of a Whisper model.
    """

    def __init__(self, weights: Weights, num_threads: int = 1) -> None:
        if int(weights["decoder/activation"]) != GELU:
            raise KeyError("decoder/activation")
        self._embeddings = weights["decoder/embeddings/weight"]
        self._scale = weights.get("decoder/embeddings/weight_scale")
        self._positions = float_matrix(weights, "decoder/position_encodings/encodings")
        builder = _Builder(weights)
        self._num_layers, self._num_heads = builder.num_layers, builder.num_heads
        self._tokens = OnnxModel(builder.token_network(), num_threads)
        self._outputs = OnnxModel(builder.output_network(), num_threads)
        self._memory = OnnxModel(builder.memory_network(), num_threads)

    @property
    def max_tokens(self) -> int:
        return len(self._positions)

    def project(self, encoded: Rows) -> KeysValues:
        """Keys and values of encoder output [T, D] in every layer."""
        return tuple(self._memory.run({"encoded": np.ascontiguousarray(encoded)}))

    @staticmethod
    def join(first: KeysValues, second: KeysValues, part: slice) -> KeysValues:
        """Those of `first`, then those of the rows `part` of `second`."""
        joined = []
        for keys in range(0, len(first), 2):
            values = keys + 1
            joined.append(np.concatenate([first[keys], second[keys][:, :, part]], axis=2))
            joined.append(np.concatenate([first[values], second[values][:, part]], axis=1))
        return tuple(joined)

    def start(self, memory: KeysValues) -> DecoderState:
        head_width = self._positions.shape[1] // self._num_heads
        empty = np.zeros((self._num_heads, 0, head_width), dtype=np.float32)
        return DecoderState(memory, (empty,) * (2 * self._num_layers))

    def extend(self, state: DecoderState, token_ids: Sequence[int]) -> np.ndarray:
        """Read N further tokens; [N, V] scores of what follows each.

        A token's scores hang on the tokens before it alone, not on how many were read at once.
        """
        first, count = state.num_tokens, len(token_ids)
        num_rows = count + count % EVEN_ROWS
        ids = [*token_ids, *[token_ids[-1]] * (num_rows - count)]
        places = np.minimum(np.arange(first, first + num_rows), len(self._positions) - 1)
        num_unused = -(first + num_rows) % KEY_STEP
        # a token sees those before it and itself
        shape = (num_rows, first + num_rows + num_unused)
        mask = np.triu(np.full(shape, -np.inf, dtype=np.float32), first + 1)
        inputs = {"embedded": self._embedded(ids) + self._positions[places], "mask": mask}
        inputs["unused"] = np.zeros(
            (self._num_heads, num_unused, state.past[0].shape[2]), dtype=np.float32
        )
        inputs |= {f"memory_{i}": values for i, values in enumerate(state.memory)}
        inputs |= {f"past_{i}": values for i, values in enumerate(state.past)}
        hidden, *past = self._tokens.run(inputs)
        state.past = tuple(past)
        state.num_tokens = first + num_rows
        state.truncate(first + count)
        return self._scores(hidden[:count])

    def _scores(self, hidden: Rows) -> np.ndarray:
        """[N, V]: exact for the likeliest, rounded for those that will not be chosen."""
        (scores,) = self._outputs.run({"hidden": hidden})
        for row, x in zip(scores, hidden, strict=True):
            likeliest = np.flatnonzero(row >= row.max() - RESCORE_WITHIN)
            row[likeliest] = self._embedded(likeliest) @ x
        return scores

    def _embedded(self, token_ids: Sequence[int] | np.ndarray) -> Rows:
        rows = self._embeddings[token_ids].astype(np.float32)
        if self._scale is not None:
            rows /= self._scale[token_ids].astype(np.float32)[:, None]
        return rows


class _Builder:
    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self.num_heads = int(weights["decoder/num_heads"])
        self._vocabulary, self._width = weights["decoder/embeddings/weight"].shape
        self._head_width = self._width // self.num_heads
        names = {name.split("/")[1] for name in weights if name.startswith("decoder/layer_")}
        self.num_layers = len(names - {"layer_norm"})
        self._graph = Graph()

    # ---- the two networks

    def memory_network(self) -> bytes:
        graph = self._graph = Graph()
        encoded = graph.input("encoded", ["T", self._width])
        for layer in range(self.num_layers):
            name = f"decoder/layer_{layer}/attention/linear_1"
            keys, values = self._split(self._integer_linear(encoded, name), 2)
            keys = graph.add(
                "Transpose", self._parted(keys), perm=[1, 2, 0], output=f"keys_{layer}"
            )
            values = graph.add(
                "Transpose", self._parted(values), perm=[1, 0, 2], output=f"values_{layer}"
            )
            graph.output(keys, self._kept_keys("T"))
            graph.output(values, self._kept("T"))
        return graph.to_bytes()

    def token_network(self) -> bytes:
        graph = self._graph = Graph()
        x = graph.input("embedded", ["N", self._width])
        graph.input("mask", ["N", "P + N + U"])
        graph.input("unused", self._kept("U"))
        past: list[str] = []
        for layer in range(self.num_layers):
            name = f"decoder/layer_{layer}"
            x = graph.add("Add", x, self._self_attention(x, layer, past))
            x = graph.add("Add", x, self._cross_attention(x, layer))
            inner = self._linear(self._norm(x, f"{name}/ffn/layer_norm"), f"{name}/ffn/linear_0")
            x = graph.add("Add", x, self._linear(graph.add("Gelu", inner), f"{name}/ffn/linear_1"))
        x = self._norm(x, "decoder/layer_norm")
        graph.output(graph.add("Identity", x, output="hidden"), ["N", self._width])
        for kept in past:
            graph.output(kept, self._kept("P + N"))
        return graph.to_bytes()

    def output_network(self) -> bytes:
        graph = self._graph = Graph()
        hidden = graph.input("hidden", ["N", self._width])
        scores = self._integer_product(hidden, "decoder/embeddings/weight", output="scores")
        graph.output(scores, ["N", self._vocabulary])
        return graph.to_bytes()

    def _self_attention(self, x: str, layer: int, past: list[str]) -> str:
        graph, name = self._graph, f"decoder/layer_{layer}/self_attention"
        joint = self._linear(self._norm(x, f"{name}/layer_norm"), f"{name}/linear_0")
        queries, *both = (self._heads(part) for part in self._split(joint, 3))
        kept = []
        for index, part in zip((2 * layer, 2 * layer + 1), both, strict=True):
            before = graph.input(f"past_{index}", self._kept("P"))
            kept.append(graph.add("Concat", before, part, axis=1, output=f"kept_{index}"))
        past += kept
        keys, values = (graph.add("Concat", part, "unused", axis=1) for part in kept)
        scores = graph.add(
            "FusedMatMul",
            queries,
            keys,
            domain=CONTRIB_DOMAIN,
            transB=1,
            alpha=self._head_width**-0.5,
        )
        mixed = self._mix(graph.add("Add", scores, "mask"), values)
        return self._linear(mixed, f"{name}/linear_1")

    def _cross_attention(self, x: str, layer: int) -> str:
        graph, name = self._graph, f"decoder/layer_{layer}/attention"
        queries = self._linear(self._norm(x, f"{name}/layer_norm"), f"{name}/linear_0")
        keys = graph.input(f"memory_{2 * layer}", self._kept_keys("T"))
        values = graph.input(f"memory_{2 * layer + 1}", self._kept("T"))
        scores = graph.add(
            "FusedMatMul",
            self._heads(queries),
            keys,
            domain=CONTRIB_DOMAIN,
            alpha=self._head_width**-0.5,
        )
        mixed = self._mix(scores, values)
        return self._linear(mixed, f"{name}/linear_2")

    # ---- their parts

    def _mix(self, scores: str, values: str) -> str:
        graph = self._graph
        mixed = graph.add("MatMul", graph.add("Softmax", scores, axis=-1), values)  # [H, N, D / H]
        rows = graph.add("Transpose", mixed, perm=[1, 0, 2])
        return graph.add("Reshape", rows, graph.constant(np.array([-1, self._width])))

    def _heads(self, rows: str) -> str:
        """[N, D] -> [H, N, D / H]"""
        return self._graph.add("Transpose", self._parted(rows), perm=[1, 0, 2])

    def _parted(self, rows: str) -> str:
        """[N, D] -> [N, H, D / H]"""
        shape = np.array([-1, self.num_heads, self._head_width])
        return self._graph.add("Reshape", rows, self._graph.constant(shape))

    def _split(self, rows: str, count: int) -> Sequence[str]:
        names = [f"{rows}_{index}" for index in range(count)]
        return self._graph.add_split("Split", [rows], names, axis=-1, num_outputs=count)

    def _norm(self, x: str, name: str) -> str:
        graph = self._graph
        gamma, beta = (
            graph.constant(float_matrix(self._weights, f"{name}/{part}"))
            for part in ("gamma", "beta")
        )
        return graph.add("LayerNormalization", x, gamma, beta, axis=-1, epsilon=NORM_EPSILON)

    def _linear(self, x: str, name: str) -> str:
        return self._biased(self._product(x, f"{name}/weight"), name)

    def _biased(self, x: str, name: str) -> str:
        bias = self._graph.constant(float_matrix(self._weights, f"{name}/bias"))
        return self._graph.add("Add", x, bias)

    def _product(self, x: str, name: str) -> str:
        weight = float_matrix(self._weights, name)
        rounded, scales = round_to_int8(weight)
        return self._graph.add(
            "MatMulNBits",
            x,
            self._graph.constant(rounded),
            self._graph.constant(scales),
            domain=CONTRIB_DOMAIN,
            N=weight.shape[0],
            K=weight.shape[1],
            bits=8,
            block_size=BLOCK,
            accuracy_level=INT8_PRODUCTS,
        )

    def _integer_linear(self, x: str, name: str) -> str:
        return self._biased(self._integer_product(x, f"{name}/weight"), name)

    def _integer_product(self, x: str, name: str, output: str = "") -> str:
        """In int8 with one scale per column and one per row of `x`: sums of whole numbers."""
        graph = self._graph
        rounded, scales = round_rows_to_int8(float_matrix(self._weights, name))
        largest = graph.add("ReduceMax", graph.add("Abs", x), graph.constant(np.array([1])))
        steps = graph.add("Div", largest, graph.constant(np.float32(ACTIVATION_STEPS)))
        one, middle = graph.constant(np.float32(1)), graph.constant(np.uint8(ACTIVATION_STEPS + 1))
        activations = graph.add("QuantizeLinear", graph.add("Div", x, steps), one, middle)
        products = graph.add(
            "MatMulIntegerToFloat",
            activations,
            graph.constant(rounded.T),
            one,
            graph.constant(scales),
            middle,
            domain=CONTRIB_DOMAIN,
        )
        return graph.add("Mul", products, steps, output=output)

    def _kept_keys(self, length: str) -> list[int | str]:
        return [self.num_heads, self._head_width, length]

    def _kept(self, length: str) -> list[int | str]:
        return [self.num_heads, length, self._head_width]


def round_rows_to_int8(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[N, K] -> ([N, K] int8, [N] scales)"""
    scales = np.maximum(np.abs(weight).max(axis=-1), 1e-12) / WEIGHT_STEPS
    return np.rint(weight / scales[:, None]).astype(np.int8), scales


def round_to_int8(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[N, K] -> ([N, K / BLOCK, BLOCK] uint8 around 128, [N * K / BLOCK] scales)"""
    blocks = weight.reshape(weight.shape[0], -1, BLOCK)
    scales = np.maximum(np.abs(blocks).max(axis=-1), 1e-12) / 127
    rounded = np.rint(blocks / scales[..., None]) + 128
    return rounded.astype(np.uint8), scales.reshape(-1).astype(np.float32)
