from __future__ import annotations

from tts.synthesizer import TextOnly


def test_the_text_only_synthesizer_speaks_nothing():
    voice = TextOnly()
    voice.warm_up()
    assert list(voice.synthesize("Hello.")) == []
