"""Timing of passes, on a model small enough to be quick."""

from llm_engine.model_speed import measure_model, read_bandwidth
from llm_engine.random_model import random_model
from llm_engine.transformers_peer import twin_of


def test_every_figure_is_measured(tmp_path):
    model = random_model("llama2", 1)
    twin_of(model).save_pretrained(tmp_path)
    speed = measure_model(tmp_path, "float32", num_threads=1, repeats=3)
    assert min(speed.decode_ms, speed.verify_ms, speed.prefill_ms) > 0
    assert speed.first_pass_ms > 0 and speed.load_ms > 0
    state = model.dense_state()
    matrices = sum(
        tensor.numel() for name, tensor in state.items() if tensor.ndim == 2 and "embed" not in name
    )
    padding = (272 - 259) * 96  # the head's last panel
    assert speed.weight_bytes == (matrices + padding) * 4
    expected = speed.weight_bytes / (speed.read_gb_per_s * 1e9) * 1e3
    assert abs(speed.weights_read_ms - expected) < 1e-6


def test_bandwidth_is_plausible():
    assert 1e8 < read_bandwidth(1) < 1e13
