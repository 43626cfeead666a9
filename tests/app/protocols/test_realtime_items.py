from __future__ import annotations

import pytest

from app.protocols.errors import ProtocolError
from app.protocols.realtime_items import MAX_ITEMS, MAX_TEXT_CHARS, Item, ItemLog, read_item


def message(text: str = "Hi!", kind: str = "input_text") -> dict:
    return {"role": "user", "content": [{"type": kind, "text": text}]}


def test_the_log_keeps_the_order_and_forgets_the_oldest():
    log = ItemLog()
    previous = [log.add(Item(f"i{n}", "user", "text", "x")) for n in range(MAX_ITEMS + 1)]
    assert previous[:3] == [None, "i0", "i1"]
    assert "i0" not in log and log.last_id == f"i{MAX_ITEMS}"


def test_parts_of_a_message_are_joined():
    given = message() | {"content": [{"type": "input_text", "text": word} for word in ("a", "b")]}
    assert read_item(given, "new", ItemLog()) == Item("new", "user", "text", "a b")


def test_the_assistants_words_may_be_given_as_text_or_transcript():
    for part in ({"type": "output_text", "text": "Yes."}, {"type": "audio", "transcript": "Yes."}):
        item = read_item({"role": "assistant", "content": [part]}, "new", ItemLog())
        assert (item.role, item.text) == ("assistant", "Yes.")


def test_an_id_in_use_is_refused():
    log = ItemLog()
    log.add(Item("a", "user", "text", "x"))
    with pytest.raises(ProtocolError, match="'a' exists"):
        read_item(message() | {"id": "a"}, "new", log)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (message() | {"id": "x" * 65}, "invalid_value"),
        (message("x" * (MAX_TEXT_CHARS + 1)), "text_too_long"),
        (message(kind="input_image"), "unsupported"),
        ({"role": "user", "content": ["text"]}, "invalid_type"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "invalid_type"),
    ],
)
def test_bad_items_are_refused(given, code):
    with pytest.raises(ProtocolError) as caught:
        read_item(given, "new", ItemLog())
    assert caught.value.code == code


def test_an_unfinished_item_has_no_content_yet():
    assert Item("a", "assistant", "audio", "", "in_progress").rendered()["content"] == []
