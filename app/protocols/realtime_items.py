"""The conversation as the client knows it: item objects, their order, and the client's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

from app.protocols.errors import ProtocolError

MAX_ITEMS = 1024  # the oldest are forgotten here; the session's conversation has its own bound
MAX_TEXT_CHARS = 100_000

Role = Literal["system", "user", "assistant"]
_TEXT_PARTS = {
    "system": ("input_text", "text"),
    "user": ("input_text", "text"),
    "assistant": ("output_text", "text"),
}


@dataclass(slots=True)
class Item:
    """One message. `medium` is how it came: spoken items carry a transcript, others text."""

    item_id: str
    role: Role
    medium: Literal["text", "audio"]
    text: str | None = None  # None: spoken, and not transcribed yet
    status: Literal["in_progress", "completed", "incomplete"] = "completed"
    sent_ms: int = 0  # reply audio sent to the client

    def rendered(self) -> dict[str, Any]:
        return {
            "id": self.item_id,
            "object": "realtime.item",
            "type": "message",
            "status": self.status,
            "role": self.role,
            "content": [self._content()] if self.status != "in_progress" else [],
        }

    def _content(self) -> dict[str, Any]:
        direction = "output" if self.role == "assistant" else "input"
        field = "transcript" if self.medium == "audio" else "text"
        return {"type": f"{direction}_{self.medium}", field: self.text}


class ItemLog:
    """Items in the order of the conversation, bounded."""

    def __init__(self) -> None:
        self._items: dict[str, Item] = {}

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._items

    @property
    def last_id(self) -> str | None:
        return next(reversed(self._items), None)

    def add(self, item: Item) -> str | None:
        """Append; the id of the item before it."""
        previous = self.last_id
        self._items[item.item_id] = item
        if len(self._items) > MAX_ITEMS:
            del self._items[next(iter(self._items))]
        return previous

    def find(self, item_id: object, param: str = "item_id") -> Item:
        """Raises ProtocolError for an unknown id."""
        item = self._items.get(item_id) if isinstance(item_id, str) else None
        if item is None:
            raise ProtocolError(
                "item_not_found", f"no item {item_id!r} in this conversation", param
            )
        return item

    def get(self, item_id: str) -> Item | None:
        return self._items.get(item_id)

    def remove(self, item_id: str) -> None:
        del self._items[item_id]


def read_item(given: object, new_id: str, items: ItemLog) -> Item:
    """The item of a `conversation.item.create`. Raises ProtocolError unless it is text."""
    if not isinstance(given, dict):
        raise ProtocolError("invalid_type", f"item must be an object, not {given!r:.40}", "item")
    kind, role, content = given.get("type", "message"), given.get("role"), given.get("content")
    if kind != "message":
        raise ProtocolError("unsupported", f"items of type {kind!r} are not supported", "item.type")
    if not isinstance(role, str) or role not in _TEXT_PARTS:
        known = ", ".join(_TEXT_PARTS)
        raise ProtocolError(
            "invalid_value", f"unknown role {role!r:.80}; known: {known}", "item.role"
        )
    if not isinstance(content, list) or not content:
        raise ProtocolError(
            "invalid_value", f"content must be a list of parts, not {content!r:.40}", "item.content"
        )
    item_id = given.get("id") or new_id
    if not isinstance(item_id, str) or len(item_id) > 64:
        raise ProtocolError("invalid_value", f"not an item id: {item_id!r:.80}", "item.id")
    if item_id in items:
        raise ProtocolError("item_exists", f"item {item_id!r} exists already", "item.id")
    text = " ".join(_part_text(part, role, index) for index, part in enumerate(content))
    if len(text) > MAX_TEXT_CHARS:
        raise ProtocolError(
            "text_too_long", f"{len(text)} characters; limit {MAX_TEXT_CHARS}", "item.content"
        )
    return Item(item_id, cast(Role, role), "text", text)


def _part_text(part: object, role: str, index: int) -> str:
    param = f"item.content[{index}]"
    if not isinstance(part, dict):
        raise ProtocolError("invalid_type", f"{param} must be an object, not {part!r:.40}", param)
    kind = part.get("type", "text")
    if kind in _TEXT_PARTS[role]:
        text = part.get("text")
    elif kind in ("input_audio", "output_audio", "audio") and part.get("transcript"):
        text = part["transcript"]  # a conversation replayed by the client
    else:
        raise ProtocolError(
            "unsupported", f"{param}: {kind!r} in a message of the {role} is not supported", param
        )
    if not isinstance(text, str):
        raise ProtocolError(
            "invalid_type", f"{param}.text must be a string, not {text!r:.40}", f"{param}.text"
        )
    return text
