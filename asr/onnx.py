"""Where ONNX sessions are made (the VAD's and Smart Turn's)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from asr.errors import ModelBroken, ModelNotFound

LOG_ERRORS_ONLY = 3


class OnnxModel:
    """One network on the CPU. `run` may be called from several threads at once.

    Raises:
        ModelNotFound, ModelBroken: when it is made.
    """

    def __init__(self, path: Path, num_threads: int = 1) -> None:
        if not path.is_file():
            raise ModelNotFound(path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = num_threads
        options.inter_op_num_threads = 1
        options.log_severity_level = LOG_ERRORS_ONLY
        # Spinning threads would take the cores from the other workers between calls.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session = onnxruntime.InferenceSession(
                str(path), sess_options=options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime has no common base of its load errors
            raise ModelBroken(path, str(error)) from error

    def run(self, inputs: dict[str, Any]) -> list[np.ndarray]:
        """All outputs, in the network's order."""
        return list(self._session.run(None, inputs))
