from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.errors import RecordingNotFound
from app.recordings import (
    FRAME_SAMPLES,
    MAX_SILENCE_S,
    find_recordings,
    frames_with_silence,
    load,
    noise_floor,
    speech_window_ends_s,
)

HEADER = "file\tkind\tlang\ttranscript"


def write_manifest(folder: Path, *rows: str) -> Path:
    manifest = folder / "manifest.tsv"
    manifest.write_text("\n".join([HEADER, *rows]) + "\n", encoding="utf-8")
    return manifest


def test_a_manifest_gives_kind_language_and_reference(tmp_path: Path) -> None:
    manifest = write_manifest(
        tmp_path,
        "a.wav\tquestion\ten\twhat time",
        'b.wav\tlong\ten\tunknown; "draft"',
        "n.wav\tnoise\t-\t(none)",
    )
    question, long, noise = find_recordings([manifest])
    assert (question.reference, question.language, question.kind) == ("what time", "en", "question")
    assert long.reference is None and long.holds_speech
    assert noise.reference is None and not noise.holds_speech


def test_a_file_in_a_folder_with_a_manifest_is_known_by_it(tmp_path: Path) -> None:
    write_manifest(tmp_path, "a.wav\tquestion\ten\twhat time")
    (tmp_path / "a.wav").touch()
    (tmp_path / "z.wav").touch()
    known, unknown = find_recordings([tmp_path / "a.wav", tmp_path / "z.wav"])
    assert known.reference == "what time" and unknown.reference is None


def test_a_folder_without_manifest_gives_its_audio_files(tmp_path: Path) -> None:
    for name in ("b.flac", "a.WAV", "notes.txt"):
        (tmp_path / name).touch()
    assert [recording.name for recording in find_recordings([tmp_path])] == ["a.WAV", "b.flac"]


@pytest.mark.parametrize("name", ["missing.wav", "empty"])
def test_what_holds_no_recording_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RecordingNotFound, match=name):
        find_recordings([tmp_path / name])


def test_a_table_that_is_no_manifest_is_named(tmp_path: Path) -> None:
    table = tmp_path / "other.tsv"
    table.write_text("x\ty\n1\t2\n")
    with pytest.raises(RecordingNotFound, match="other.tsv"):
        find_recordings([table])


def test_silence_at_the_clips_own_noise_floor_follows_the_clip() -> None:
    rng = np.random.default_rng(1)
    quiet = (rng.standard_normal(16_000) * 0.01).astype(np.float32)
    loud = (rng.standard_normal(16_000) * 0.5).astype(np.float32)
    clip = np.concatenate([quiet, loud])
    frames = list(frames_with_silence(clip))
    assert all(len(frame) == FRAME_SAMPLES for frame in frames)
    assert len(frames) == len(clip) // FRAME_SAMPLES + int(MAX_SILENCE_S * 50)
    tail = noise_floor(clip, 16_000)
    assert 0.005 < float(np.std(tail)) < 0.015
    assert np.array_equal(tail, noise_floor(clip, 16_000))


def test_a_clip_shorter_than_a_frame_has_digital_silence_behind_it() -> None:
    assert not noise_floor(np.ones(10, np.float32), 100).any()


def test_speech_ends_where_the_last_speech_window_ends(clips_dir: Path) -> None:
    (recording,) = find_recordings([clips_dir / "gcp_audio_silence_padding.wav"])
    samples = load(recording)
    ends_s = speech_window_ends_s(samples)
    assert 3.3 < ends_s[-1] < 4.2  # the manifest says 2.04 s before the end of 5.81 s
    assert not len(speech_window_ends_s(np.zeros(16_000, np.float32)))
