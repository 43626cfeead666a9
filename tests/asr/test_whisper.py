from __future__ import annotations

from pathlib import Path

import ctranslate2
import numpy as np
import pytest

from asr.audio import SAMPLE_RATE_HZ, read_file
from asr.errors import DeviceUnavailable, ModelBroken, ModelNotFound, UnsupportedComputeType
from asr.events import DecodeRequest
from asr.normal_form import normal_form
from asr.whisper import Recogniser, _Hypothesis

CLIPS = {
    "gasst_whattimeisit.riff": "what time is it",
    "riva_en-US_sample.wav": "what is natural language processing",
}


@pytest.fixture(scope="module")
def recogniser(whisper_path: Path) -> Recogniser:
    return Recogniser(whisper_path)


@pytest.fixture(scope="module")
def doubting(whisper_path: Path) -> Recogniser:
    """Every final gets its second opinion."""
    return Recogniser(whisper_path, second_opinion_below=0.0)


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


@pytest.mark.models
def test_a_language_is_told_only_where_it_was_asked_for_or_detected(
    recogniser: Recogniser, clips_dir: Path
) -> None:
    samples = read_file(clips_dir / "gasst_whattimeisit.riff")
    asked, open_ = recogniser.decode([request(samples, language="en"), request(samples)])
    assert asked.language == "en"
    assert open_.language == ("en" if recogniser.is_multilingual else None)


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


# ---- what happens where a self-check fails


@pytest.mark.models
def test_a_model_that_does_not_take_to_the_graft_decodes_full_windows(
    whisper_path: Path,
    clips_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def hears_nothing(self: Recogniser, samples: np.ndarray) -> np.ndarray:
        return self._encode_mel(np.zeros(SAMPLE_RATE_HZ, np.float32))

    monkeypatch.setattr(Recogniser, "_encode_speech", hears_nothing)
    recogniser = Recogniser(whisper_path, cache_folder=tmp_path)
    assert not recogniser.uses_graft
    assert "graft self-check failed" in caplog.text
    assert not list(tmp_path.iterdir())  # the next start checks again
    assert_reads_the_clips(recogniser, clips_dir)


def reads_otherwise(self: Recogniser, *args: object) -> _Hypothesis:
    return _Hypothesis("something else", (), 0.0, 0.0)


def lacks_a_weight(path: Path) -> dict[str, np.ndarray]:
    raise KeyError("decoder/layer_0")


@pytest.mark.models
@pytest.mark.parametrize(
    ("place", "fault", "warning"),
    [
        ("Recogniser._check_draft", reads_otherwise, "text decoder self-check failed"),
        ("read_weights", lacks_a_weight, "decoder/layer_0"),
    ],
)
def test_where_our_decoder_cannot_be_used_ctranslate2_decodes(
    whisper_path: Path,
    clips_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    place: str,
    fault: object,
    warning: str,
) -> None:
    monkeypatch.setattr(f"asr.whisper.{place}", fault)
    recogniser = Recogniser(whisper_path)
    assert recogniser.uses_graft and recogniser.max_batch > 1
    assert warning in caplog.text
    assert_reads_the_clips(recogniser, clips_dir)


@pytest.mark.models
def test_a_doubtful_final_is_replaced_by_its_second_opinion_and_a_partial_is_not(
    doubting: Recogniser, clips_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (name, words), *_ = CLIPS.items()
    samples = read_file(clips_dir / name)
    encode = doubting._encode_speech
    noise = np.random.default_rng(0).normal(0.0, 0.3, len(samples)).astype(np.float32)
    monkeypatch.setattr(doubting, "_encode_speech", lambda heard: encode(heard + noise))
    partial, final = doubting.decode([request(samples, kind="partial"), request(samples)])
    assert normal_form(final.text) == words != normal_form(partial.text)
    assert final.log_probability > partial.log_probability


@pytest.mark.models
def test_a_second_opinion_that_is_less_sure_changes_nothing(
    doubting: Recogniser, clips_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (name, words), *_ = CLIPS.items()
    samples = read_file(clips_dir / name)
    encode = doubting._encode_full
    noise = np.random.default_rng(0).normal(0.0, 0.3, len(samples)).astype(np.float32)
    monkeypatch.setattr(doubting, "_encode_full", lambda heard: encode(heard + noise))
    (final,) = doubting.decode([request(samples)])
    assert normal_form(final.text) == words


@pytest.mark.models
def test_the_kept_table_is_made_anew_by_another_ctranslate2(
    whisper_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Recogniser, "_make_graft_table", lambda self: np.zeros((1, 4, 4), np.float32)
    )
    monkeypatch.setattr(Recogniser, "_make_text_decoder", lambda *args: None)
    for version in ("4.8.5", "4.8.5", "4.9.0"):
        monkeypatch.setattr(ctranslate2, "__version__", version)
        Recogniser(whisper_path, cache_folder=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def assert_reads_the_clips(recogniser: Recogniser, clips_dir: Path) -> None:
    for name, words in CLIPS.items():
        (result,) = recogniser.decode([request(read_file(clips_dir / name))])
        assert normal_form(result.text) == words
