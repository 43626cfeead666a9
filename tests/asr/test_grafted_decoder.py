from __future__ import annotations

import numpy as np

from asr.decoder import TextDecoder
from asr.grafted_decoder import GRAFT_FRAMES, GraftedDecoder
from asr.greedy import TokenRules
from tests.asr.test_decoder import POSITIONS, VOCABULARY, D, draw, random_weights

RULES = TokenRules(end=0)
PROMPT = [4, 5]


def test_the_padding_follows_the_window_at_its_own_positions() -> None:
    decoder, table = TextDecoder(random_weights()), draw(2 * GRAFT_FRAMES, D)
    grafted = GraftedDecoder(decoder, table, RULES, start=PROMPT[1], no_speech=1)
    window = draw(40, D)
    decoded = grafted.decode(window, PROMPT, max_tokens=5)
    joined = np.concatenate([window, table[40 : 40 + GRAFT_FRAMES]])
    scores = decoder.extend(decoder.start(decoder.project(joined)), PROMPT)
    # float32, in another order, which may round an activation to the neighbouring int8
    np.testing.assert_allclose(decoded.kept_scores, scores[1], atol=0.02)
    shares = np.exp(scores[1]) / np.exp(scores[1]).sum()
    assert np.isclose(grafted.no_speech_probability(decoded), shares[1], rtol=0.05)


def test_no_text_outgrows_the_positions_of_the_model() -> None:
    grafted = GraftedDecoder(
        TextDecoder(random_weights()),
        draw(2 * GRAFT_FRAMES, D),
        TokenRules(end=VOCABULARY - 1, never=[VOCABULARY - 1]),
        start=PROMPT[1],
        no_speech=1,
    )
    decoded = grafted.decode(draw(40, D), PROMPT, max_tokens=100, draft=[3] * 50)
    assert len(decoded.token_ids) == POSITIONS - len(PROMPT) - 1
