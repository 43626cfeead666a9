"""Where ONNX sessions are made (the VAD's, Smart Turn's and the text decoder's)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from asr.errors import ModelBroken, ModelNotFound

LOG_ERRORS_ONLY = 3


class OnnxModel:
    """One network on the CPU, from a file or from bytes. `run` may be called from several threads
    at once.

    Raises:
        ModelNotFound, ModelBroken: when it is made.
    """

    def __init__(self, source: Path | bytes, num_threads: int = 1) -> None:
        if isinstance(source, Path) and not source.is_file():
            raise ModelNotFound(source)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = num_threads
        options.inter_op_num_threads = 1
        options.log_severity_level = LOG_ERRORS_ONLY
        # Spinning threads would take the cores from the other workers between calls.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session = onnxruntime.InferenceSession(
                source if isinstance(source, bytes) else str(source),
                sess_options=options,
                providers=["CPUExecutionProvider"],
            )
        except Exception as error:  # onnxruntime has no common base of its load errors
            name = source if isinstance(source, Path) else "network"
            raise ModelBroken(name, str(error)) from error

    def run(self, inputs: dict[str, Any]) -> list[np.ndarray]:
        """All outputs, in the network's order."""
        return list(self._session.run(None, inputs))
