"""Smart Turn v3.2: how complete an utterance sounds (pipecat-ai/smart-turn, BSD-2)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from asr.audio import SAMPLE_RATE_HZ, Samples
from asr.mel import log_mel
from asr.onnx import OnnxModel

WINDOW_SAMPLES = 8 * SAMPLE_RATE_HZ


class SmartTurn:
    """Probability that the caller has finished, from sound alone. About 50 ms of CPU time a call.

    Raises:
        ModelNotFound, ModelBroken
    """

    def __init__(self, path: Path, num_threads: int = 1) -> None:
        self._model = OnnxModel(path, num_threads)

    def probability(self, samples: Samples) -> float:
        """`samples` [N]: the utterance with some 300 ms before it; only the last 8 s count."""
        window = np.zeros(WINDOW_SAMPLES, dtype=np.float32)
        recent = samples[-WINDOW_SAMPLES:]
        window[WINDOW_SAMPLES - len(recent) :] = recent  # the network expects zeros in front
        window = (window - window.mean()) / np.sqrt(window.var() + np.float32(1e-7))
        features = log_mel(window)[None]
        return float(self._model.run({"input_features": features})[0].flat[0])
