from __future__ import annotations

import math

import pytest

from app.protocols.errors import ProtocolError
from app.protocols.realtime_fields import MAX_TOKENS, checked, max_tokens, modalities, number


@pytest.mark.parametrize("value", [True, "1", None, math.nan, -0.1, 1.1])
def test_what_is_no_number_in_range_is_refused_by_name(value):
    with pytest.raises(ProtocolError) as caught:
        number(value, 0.0, 1.0, "here")
    assert caught.value.param == "here"


def test_numbers_in_range_pass():
    assert number(1, 0.0, 1.0, "here") == 1


def test_an_unlimited_reply_is_the_longest_there_is():
    assert max_tokens("inf", "here") == MAX_TOKENS
    assert max_tokens(5, "here") == 5


def test_modalities_say_whether_the_reply_is_spoken():
    assert modalities(["text", "audio"], "here") and modalities(["audio"], "here")
    assert not modalities(["text"], "here")


def test_a_wrong_type_is_named_with_the_value():
    with pytest.raises(ProtocolError, match="here must be a string, not 3"):
        checked(3, str, "here")
