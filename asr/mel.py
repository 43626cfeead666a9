"""Log-mel spectrogram as Whisper and Smart Turn expect it (openai/whisper, audio.py)."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from asr.audio import SAMPLE_RATE_HZ, Samples

FFT_SAMPLES = 400
HOP_SAMPLES = 160
FRAMES_PER_S = SAMPLE_RATE_HZ // HOP_SAMPLES
DYNAMIC_RANGE = 8.0  # log10 units below the loudest bin of the window

# Slaney's mel scale: linear to 1 kHz, then 27 logarithmic steps per factor of 6.4.
_LINEAR_MEL_HZ = 200.0 / 3.0
_BREAK_HZ = 1000.0
_BREAK_MEL = _BREAK_HZ / _LINEAR_MEL_HZ
_LOG_STEP = np.log(6.4) / 27.0


def _mel_to_hz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    curved = _BREAK_HZ * np.exp(_LOG_STEP * (np.maximum(mel, _BREAK_MEL) - _BREAK_MEL))
    return np.where(mel < _BREAK_MEL, mel * _LINEAR_MEL_HZ, curved)


@cache
def mel_filters(num_mels: int) -> Samples:
    """Triangular filters of equal area, [num_mels, FFT_SAMPLES // 2 + 1]."""
    top_hz = SAMPLE_RATE_HZ / 2
    top_mel = _BREAK_MEL + np.log(top_hz / _BREAK_HZ) / _LOG_STEP
    edges_hz = _mel_to_hz(np.linspace(0.0, top_mel, num_mels + 2))
    bins_hz = np.fft.rfftfreq(FFT_SAMPLES, 1.0 / SAMPLE_RATE_HZ)
    rising = (bins_hz - edges_hz[:-2, None]) / np.diff(edges_hz)[:-1, None]
    falling = (edges_hz[2:, None] - bins_hz) / np.diff(edges_hz)[1:, None]
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return np.asarray(triangles * (2.0 / (edges_hz[2:] - edges_hz[:-2]))[:, None], dtype=np.float32)


_WINDOW = np.hanning(FFT_SAMPLES + 1)[:-1].astype(np.float32)


def log_mel(samples: Samples, num_mels: int = 80) -> Samples:
    """[N] float32 at 16 kHz -> [num_mels, N // HOP_SAMPLES], scaled as in training.

    The floor is set by the loudest bin, so the result depends on the whole window.
    """
    padded = np.pad(samples, FFT_SAMPLES // 2, mode="reflect")
    frames = sliding_window_view(padded, FFT_SAMPLES)[::HOP_SAMPLES][:-1]  # [F, FFT_SAMPLES]
    spectrum = np.fft.rfft(frames * _WINDOW, axis=-1)
    power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32)
    log_power = np.log10(np.maximum(mel_filters(num_mels) @ power.T, 1e-10))
    floored = np.maximum(log_power, log_power.max() - DYNAMIC_RANGE)
    return np.ascontiguousarray((floored + 4.0) / 4.0, dtype=np.float32)
