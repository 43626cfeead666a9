"""`bench model` reports what it measured."""

import pytest

from app.bench.model import PEER_PACKAGE, run


@pytest.mark.models
def test_the_figures_of_the_default_model_are_reported(smollm2_path, monkeypatch):
    monkeypatch.setattr("app.bench.model.find_spec", lambda name: None)  # without the peer
    figures = run(smollm2_path, num_threads=1, repeats=3)
    assert figures["model"] == smollm2_path.name
    assert figures["decode_ms_per_token"] > 0 and figures["prefill_39_ms"] > 0
    assert figures["verify4_over_1"] > 0
    assert 90 < figures["weight_mb"] < 105  # the file's own size without its vocabulary
    assert not any(PEER_PACKAGE in key for key in figures)
