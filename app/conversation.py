"""History and the caller's running words → prompt snapshots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from app.errors import ItemNotFound, ItemRejected, PromptTooLarge
from app.prompt_spec import PromptSpec
from llm_engine.chat import ChatMessage, ChatTemplate
from llm_engine.prompt import Segment, Snapshot

Role = Literal["system", "user", "assistant"]

MAX_MESSAGES = 512  # a session's history is bounded: beyond it the oldest turn is forgotten


@dataclass(slots=True)
class _Message:
    item_id: str
    role: Role
    text: str


class Conversation:
    """What was said so far, and the newest snapshot of what is being said.

    The prompt is kept below `max_prompt_tokens` by forgetting the oldest messages, at a turn's
    boundary only (`begin_turn`), so that a draft never loses its history half way.
    """

    def __init__(self, template: ChatTemplate, spec: PromptSpec, max_prompt_tokens: int) -> None:
        self._template = template
        self._spec = spec
        self._max_prompt_tokens = max_prompt_tokens
        self._messages: list[_Message] = []
        self._revision = 0

    @property
    def spec(self) -> PromptSpec:
        return self._spec

    def set_spec(self, spec: PromptSpec) -> None:
        """Raises PromptTooLarge, and keeps the old one, if it leaves no room for the caller."""
        segments = self._template.segments(
            spec.system, (), "", before=spec.before, after=spec.after
        )
        num_tokens = sum(len(segment.token_ids) for segment in segments)
        max_tokens = self._max_prompt_tokens * 3 // 4
        if num_tokens > max_tokens:
            raise PromptTooLarge(num_tokens, max_tokens)
        self._spec = spec
        self.begin_turn()

    def add(self, item_id: str, role: Role, text: str) -> None:
        """Append a finished message. Raises ItemRejected for a second message of the same id."""
        if any(message.item_id == item_id for message in self._messages):
            raise ItemRejected(item_id, "an item with this id exists already")
        self._messages.append(_Message(item_id, role, text))
        if len(self._messages) > MAX_MESSAGES:
            self._forget_oldest_turn()

    def set_text(self, item_id: str, text: str) -> None:
        """Replace a message's text (only part of a reply was heard). Empty text removes it."""
        message = self._find(item_id)
        if text:
            message.text = text
        else:
            self._messages.remove(message)

    def text_of(self, item_id: str) -> str:
        return self._find(item_id).text

    def has(self, item_id: str) -> bool:
        return any(message.item_id == item_id for message in self._messages)

    def delete(self, item_id: str) -> None:
        self._messages.remove(self._find(item_id))

    def begin_turn(self) -> None:
        """Forget the oldest turns until there is room for the caller's words and a reply."""
        while self._messages and self._num_tokens() > self._max_prompt_tokens:
            self._forget_oldest_turn()

    def snapshot(
        self, slot: str | None, *, at_pause: bool = False, max_reply_tokens: int | None = None
    ) -> Snapshot:
        """The prompt with `slot` as the caller's running message (None: history alone)."""
        self._revision += 1
        return Snapshot(self._revision, self._segments(slot), at_pause, max_reply_tokens)

    def _segments(self, slot: str | None) -> tuple[Segment, ...]:
        history = [ChatMessage(message.role, message.text) for message in self._messages]
        spec = self._spec
        if slot is None and history and history[-1].role == "user":
            # The client asked for a reply to what is there: its last message takes the slot.
            slot = history.pop().text
        return self._template.segments(
            spec.system, history, slot or "", before=spec.before, after=spec.after
        )

    def _num_tokens(self) -> int:
        return sum(len(segment.token_ids) for segment in self._segments(""))

    def _forget_oldest_turn(self) -> None:
        """Drop the first message and the replies to it."""
        del self._messages[0]
        while self._messages and self._messages[0].role == "assistant":
            del self._messages[0]

    def _find(self, item_id: str) -> _Message:
        for message in self._messages:
            if message.item_id == item_id:
                return message
        raise ItemNotFound(item_id)
