"""Recordings to replay: finding them, their references, noise floor and ends of speech."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from app.errors import RecordingNotFound
from asr.audio import SAMPLE_RATE_HZ, read_file
from asr.vad import WINDOW_SAMPLES, SileroVad

AUDIO_SUFFIXES = frozenset(
    [
        ".wav",
        ".riff",
        ".flac",
        ".ogg",
        ".opus",
        ".mp3",
        ".m4a",
        ".aac",
        ".aiff",
        ".aif",
        ".gsm",
        ".au",
        ".webm",
        ".mp4",
    ]
)
FRAME_SAMPLES = SAMPLE_RATE_HZ // 50
SPEECH_THRESHOLD = 0.5
FLOOR_PERCENTILE = 5
MAX_SILENCE_S = 4.0  # how long replay goes on after the file, waiting for EOU
_NO_REFERENCE = re.compile(r"^(unknown|\(none|left:|right:|ch\d:)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Recording:
    """One clip. `reference` None: none is known. `kind` is the manifest's, "" without one."""

    path: Path
    kind: str = ""
    language: str = "en"
    reference: str | None = None

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def holds_speech(self) -> bool:
        return self.kind not in ("noise", "silence")


def find_recordings(paths: Sequence[Path]) -> list[Recording]:
    """Files, folders (with or without `manifest.tsv`) and manifests. Raises RecordingNotFound."""
    found: list[Recording] = []
    for path in paths:
        manifest = path / "manifest.tsv" if path.is_dir() else path
        if manifest.suffix == ".tsv" and manifest.is_file():
            found.extend(_read_manifest(manifest))
        elif path.is_dir():
            files = sorted(file for file in path.iterdir() if file.suffix.lower() in AUDIO_SUFFIXES)
            if not files:
                raise RecordingNotFound(path)
            found.extend(Recording(file) for file in files)
        elif path.is_file():
            found.append(_known_to_its_manifest(path))
        else:
            raise RecordingNotFound(path)
    return found


def _known_to_its_manifest(path: Path) -> Recording:
    manifest = path.parent / "manifest.tsv"
    rows = _read_manifest(manifest) if manifest.is_file() else []
    return next((row for row in rows if row.name == path.name), Recording(path))


def _read_manifest(manifest: Path) -> list[Recording]:
    with manifest.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    try:
        return [
            Recording(manifest.parent / row["file"], row["kind"], row["lang"], _reference(row))
            for row in rows
        ]
    except KeyError as cause:
        raise RecordingNotFound(manifest) from cause


def _reference(row: dict[str, str]) -> str | None:
    transcript = row["transcript"].strip()
    return None if not transcript or _NO_REFERENCE.match(transcript) else transcript


def load(recording: Recording) -> np.ndarray:
    """The whole clip, [N] float32 mono 16 kHz. Raises AudioError for what is not audio."""
    return read_file(recording.path)


def frames_with_silence(samples: np.ndarray) -> Iterator[np.ndarray]:
    """The clip, then MAX_SILENCE_S of noise at its own floor, in frames [320] float32."""
    tail = noise_floor(samples, int(MAX_SILENCE_S * SAMPLE_RATE_HZ))
    whole = np.concatenate([samples, tail])
    for start in range(0, len(whole) - FRAME_SAMPLES + 1, FRAME_SAMPLES):
        yield whole[start : start + FRAME_SAMPLES]


def noise_floor(samples: np.ndarray, num_samples: int) -> np.ndarray:
    """White noise as loud as the clip's quietest frames; the same for the same clip."""
    usable = len(samples) - len(samples) % FRAME_SAMPLES
    frames = samples[:usable].reshape(-1, FRAME_SAMPLES)
    level = (
        float(np.percentile(np.sqrt(np.mean(frames**2, axis=1)), FLOOR_PERCENTILE))
        if len(frames)
        else 0.0
    )
    noise = np.random.default_rng(0).standard_normal(num_samples).astype(np.float32)
    return noise * np.float32(level)


def speech_window_ends_s(samples: np.ndarray) -> np.ndarray:
    """Ends of all speech windows (offline Silero over the whole clip, threshold 0.5), seconds."""
    vad = SileroVad()
    num_windows = len(samples) // WINDOW_SAMPLES
    windows = samples[: num_windows * WINDOW_SAMPLES].reshape(-1, WINDOW_SAMPLES)
    probabilities = np.array([vad.probability(window) for window in windows])
    speech = np.flatnonzero(probabilities >= SPEECH_THRESHOLD)
    return (speech + 1) * WINDOW_SAMPLES / SAMPLE_RATE_HZ
