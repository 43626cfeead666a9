from __future__ import annotations

import numpy as np

from asr.onnx import OnnxModel
from asr.onnx_graph import CONTRIB_DOMAIN, Graph

RNG = np.random.default_rng(0)


def test_a_network_of_every_kind_of_part_computes_what_numpy_does() -> None:
    weight = RNG.standard_normal((3, 4)).astype(np.float32)
    graph = Graph()
    x = graph.input("x", ["N", 3])
    product = graph.add("FusedMatMul", x, graph.constant(weight), domain=CONTRIB_DOMAIN, alpha=-0.5)
    left, right = graph.add_split("Split", [product], ["a", "b"], axis=-1, num_outputs=2)
    turned = graph.add("Transpose", graph.add("Add", left, right), perm=[1, 0])
    shaped = graph.add("Reshape", turned, graph.constant(np.array([-1, 1])), output="y")
    graph.output(shaped, ["M", 1])
    for num_rows in (1, 300):
        rows = RNG.standard_normal((num_rows, 3)).astype(np.float32)
        (y,) = OnnxModel(graph.to_bytes()).run({"x": rows})
        expected = -0.5 * rows @ weight
        expected = (expected[:, :2] + expected[:, 2:]).T.reshape(-1, 1)
        # float32, in another order
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
