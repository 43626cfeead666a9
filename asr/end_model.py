"""How probable it is that the caller has finished, from all evidence there is (pure).

Every source is optional. The constants and their origin are in one table below.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from asr.normal_form import normal_form

# Words after which an English sentence goes on.
_FUNCTION_WORDS = """
    a an the and or but so because if when while that which who whose of to in on at by for from
    with without into onto about as than is are was were be been am do does did can could will would
    shall should may might must have has had my your his her its our their this these those i you he
    she we they it's i'm i'd i'll not very some any no each every um uh er like
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
_WHOLE_ANSWERS = "yes yeah yep no nope okay ok sure right correct thanks bye stop quit"
WHOLE_ANSWERS = frozenset(_WHOLE_ANSWERS.split())
GREETINGS = frozenset(
    ("hello", "hi", "hey", "hello there", "hi there", "hey there", "good morning", "good evening")
    + ("good afternoon", "excuse me", "alexa", "computer", "hello hello")
)
_CLOSED_END = re.compile(r"[^.][.?!。？！]\s*$")
PROBABILITY_FLOOR = 1e-4


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known at a pause. None: the source is off or has not answered."""

    text: str | None = None  # display form of the whole hypothesis
    turn_probability: float | None = None  # Smart Turn
    end_probability: float | None = None  # the reply model's P(the message ends here)


@dataclass(frozen=True, slots=True)
class Weights:
    """Logistic regression: bias + Σ weight · feature; the probabilities enter as logits."""

    bias: float
    turn: float
    end: float
    closed: float
    function_word: float


# Fitted by scripts/fit_endpointing.py on the soft pauses of 42 English clips (42 ends, 210 pauses
# cut in after a random word, 28 real inner pauses; both classes weigh the same; ridge 3).
WEIGHTS = {
    # (Smart Turn, reply model): weights
    (True, True): Weights(1.49, 0.16, 0.50, 0.0, -0.90),
    (True, False): Weights(-0.70, 0.16, 0.0, 1.29, -1.37),
    (False, True): Weights(1.65, 0.0, 0.52, 0.0, -1.00),
    (False, False): Weights(-0.71, 0.0, 0.0, 1.47, -1.46),
}


def features(evidence: Evidence) -> tuple[float, float, float, float]:
    """(turn, end, closed, function word) as the weights take them; 0 where unknown.

    The closing mark counts where the reply model has not answered: beside it the mark adds nothing
    (docs/asr.md), and it flips from hypothesis to hypothesis.
    """
    text = evidence.text or ""
    last_word = (normal_form(text).split() or [""])[-1]
    return (
        _logit(evidence.turn_probability),
        _logit(evidence.end_probability),
        float(evidence.end_probability is None and bool(_CLOSED_END.search(text))),
        float(last_word in FUNCTION_WORDS),
    )


def joint_probability(evidence: Evidence) -> float:
    """P(the utterance is complete). Text that has not come counts as unknown, not as incomplete."""
    key = evidence.turn_probability is not None, evidence.end_probability is not None
    weights = WEIGHTS[key]
    turn, end, closed, function_word = features(evidence)
    score = (
        weights.bias
        + weights.turn * turn
        + weights.end * end
        + weights.closed * closed
        + weights.function_word * function_word
    )
    return 1.0 / (1.0 + math.exp(-score))


def is_greeting(text: str) -> bool:
    """A call for attention that is usually followed by the matter itself."""
    return normal_form(text) in GREETINGS


def is_whole_answer(text: str) -> bool:
    """One word that answers by itself."""
    return normal_form(text) in WHOLE_ANSWERS


def _logit(probability: float | None) -> float:
    if probability is None:
        return 0.0
    clipped = min(max(probability, PROBABILITY_FLOOR), 1.0 - PROBABILITY_FLOOR)
    return math.log(clipped / (1.0 - clipped))
