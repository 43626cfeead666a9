"""What one session asks of its listener."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from asr.endpointing import TELEPHONE_THRESHOLDS, Eagerness, VadThresholds


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """Per session. `silence_ms` counts in `server_vad`, `eagerness` in `semantic_vad`.

    `end_probability_grace_ms`: how long a pause's decision waits, after its transcript was told,
    for the reply model's end probability; 0 where none will come.
    """

    turn_detection: Literal["none", "server_vad", "semantic_vad"] = "semantic_vad"
    eagerness: Eagerness = "auto"
    silence_ms: int = 500
    vad_threshold: float | None = None
    is_telephone: bool = False
    use_smart_turn: bool = True
    end_probability_grace_ms: int = 0
    partial_step_ms: int = 300
    max_partial_step_ms: int = 600
    language: str | None = None
    hot_words: str | None = None
    num_hypotheses: int = 1
    word_times: bool = False

    @property
    def thresholds(self) -> VadThresholds:
        base = TELEPHONE_THRESHOLDS if self.is_telephone else VadThresholds()
        if self.vad_threshold is None:
            return base
        gap = base.on - base.off
        return VadThresholds(self.vad_threshold, max(0.01, self.vad_threshold - gap))
