from __future__ import annotations

from pathlib import Path

import ctranslate2
import numpy as np
import pytest

from asr.audio import SAMPLE_RATE_HZ, read_file
from asr.errors import DeviceUnavailable, ModelBroken, ModelNotFound, UnsupportedComputeType
from asr.events import DecodeRequest
from asr.normal_form import normal_form
from asr.whisper import Recogniser

CLIPS = {
    "gasst_whattimeisit.riff": "what time is it",
    "riva_en-US_sample.wav": "what is natural language processing",
}


@pytest.fixture(scope="module")
def recogniser(whisper_path: Path) -> Recogniser:
    return Recogniser(whisper_path)


def request(samples: np.ndarray, revision: int = 0, **fields) -> DecodeRequest:
    return DecodeRequest(0, revision, samples, 1.0, fields.pop("kind", "pause"), **fields)


@pytest.mark.models
def test_the_graft_holds_for_the_default_model(recogniser: Recogniser) -> None:
    assert recogniser.uses_graft


@pytest.mark.models
def test_a_batch_of_unequal_windows_reads_as_its_parts_do(
    recogniser: Recogniser, clips_dir: Path
) -> None:
    requests = [request(read_file(clips_dir / name), i) for i, name in enumerate(CLIPS)]
    together = recogniser.decode(requests)
    assert [normal_form(result.text) for result in together] == list(CLIPS.values())
    assert [result.revision for result in together] == [0, 1]
    assert [recogniser.decode([one])[0].text for one in requests] == [r.text for r in together]


@pytest.mark.models
def test_noise_gives_no_text(recogniser: Recogniser) -> None:
    noise = np.random.default_rng(0).standard_normal(3 * SAMPLE_RATE_HZ).astype(np.float32)
    for level in (0.0, 0.001, 0.05):
        assert recogniser.decode([request(noise * np.float32(level))])[0].text == ""


@pytest.mark.models
def test_words_have_times_within_the_audio_and_a_confidence(
    recogniser: Recogniser, clips_dir: Path
) -> None:
    samples = read_file(clips_dir / "gasst_whattimeisit.riff")
    (result,) = recogniser.decode([request(samples, word_times=True)])
    assert " ".join(word.text for word in result.words) == result.text
    times = [time for word in result.words for time in (word.start_s, word.end_s)]
    assert times == sorted(times)
    assert times[0] >= 1.0
    assert times[-1] <= 1.0 + len(samples) / SAMPLE_RATE_HZ
    assert all(0.0 < word.probability <= 1.0 for word in result.words)


@pytest.mark.models
def test_hot_words_steer_the_spelling(recogniser: Recogniser, clips_dir: Path) -> None:
    samples = read_file(clips_dir / "riva_en-US_AntiBERTa_for_word_boosting_testing.wav")
    (plain,) = recogniser.decode([request(samples)])
    (steered,) = recogniser.decode([request(samples, hot_words="AntiBERTa, ABlooper")])
    assert "ablooper" not in plain.text.lower()
    assert "ablooper" in steered.text.lower()


@pytest.mark.models
def test_languages_are_those_of_the_model(recogniser: Recogniser) -> None:
    assert "en" in recogniser.languages and "klingon" not in recogniser.languages
    assert (len(recogniser.languages) > 1) is recogniser.is_multilingual


def test_models_that_are_not_there_or_broken_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="none"):
        Recogniser(tmp_path / "none")
    with pytest.raises(ModelBroken):
        Recogniser(tmp_path)


def test_a_compute_type_that_the_device_does_not_have_is_named_with_those_it_has(
    tmp_path: Path,
) -> None:
    with pytest.raises(UnsupportedComputeType, match=r"'int3' on cpu; supported: .*float32, int8"):
        Recogniser(tmp_path, compute_type="int3")


@pytest.mark.parametrize("device", ["cuda", "tpu"])
def test_a_device_that_is_not_there_is_named(
    tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(device: str) -> set[str]:
        raise RuntimeError("no driver")

    monkeypatch.setattr(ctranslate2, "get_supported_compute_types", refuses)
    with pytest.raises(DeviceUnavailable, match=f"{device}': no driver"):
        Recogniser(tmp_path, device=device)


@pytest.mark.models
def test_without_a_gpu_the_automatic_device_is_the_cpu_with_our_own_decoder(
    whisper_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctranslate2, "get_cuda_device_count", lambda: 0)
    recogniser = Recogniser(whisper_path, device="auto", compute_type="int8_float32")
    assert recogniser.max_batch == 1


@pytest.mark.models
def test_a_draft_changes_no_text(recogniser: Recogniser, clips_dir: Path) -> None:
    for name in CLIPS:
        samples = read_file(clips_dir / name)
        (free,) = recogniser.decode([request(samples)])
        words = free.text.split()
        drafts = [free.text, " ".join(words[:-2]), " ".join(words[1:]), "Nothing like it at all."]
        for draft in drafts:
            (checked,) = recogniser.decode([request(samples, draft=draft)])
            assert checked.text == free.text, draft
            assert checked.log_probability == pytest.approx(free.log_probability, abs=0.01)


@pytest.mark.models
def test_our_decoder_reads_as_ctranslate2_does(recogniser: Recogniser, clips_dir: Path) -> None:
    for name in CLIPS:
        samples = read_file(clips_dir / name)
        ours, theirs = recogniser.decode(
            [request(samples), request(samples, num_hypotheses=2)]  # beams are CTranslate2's
        )
        assert normal_form(ours.text) == normal_form(theirs.text)
        assert ours.no_speech_probability == pytest.approx(theirs.no_speech_probability, abs=0.1)
