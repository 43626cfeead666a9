from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from app.bench import asr_load
from asr.events import DecodeRequest, DecodeResult


class Slow:
    """Decodes one request at a time in `seconds`."""

    max_batch = 1

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def decode(self, requests: Sequence[DecodeRequest]) -> list[DecodeResult]:
        time.sleep(self.seconds * len(requests))
        return [DecodeResult(r.utterance, r.revision, "") for r in requests]

    def probability(self, samples: object) -> float:
        return 0.5


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asr_load, "RUN_S", 1.5)


def test_the_step_stretches_with_the_load() -> None:
    decoder = Slow(0.2)  # two threads: ten answers a second
    assert asr_load.mean_step_s(decoder, decoder, 1) < 0.55
    assert asr_load.mean_step_s(decoder, decoder, 10) > 0.65


def test_a_recogniser_that_cannot_keep_up_with_one_carries_none() -> None:
    decoder = Slow(2.0)
    assert asr_load.streams_realtime(decoder, decoder) == 0
