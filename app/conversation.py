"""History and the caller's running words → prompt snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from app.errors import ItemNotFound, ItemRejected, PromptRejected, PromptTooLarge
from app.prompt_spec import PromptSpec
from llm_engine.chat import ChatMessage, ChatTemplate
from llm_engine.prompt import Segment, Snapshot
from llm_engine.template import ChatTemplateError

Role = Literal["system", "user", "assistant"]

MAX_MESSAGES = 512  # a session's history is bounded: beyond it the oldest turn is forgotten
WORDS_SHARE = 8  # an eighth of the room is kept free of history, for the caller's next words


@dataclass(slots=True)
class _Message:
    item_id: str
    role: Role
    text: str


class Conversation:
    """What was said so far, and the newest snapshot of what is being said.

    Prompts stay within `max_prompt_tokens` by leaving out the oldest turns. At a turn's boundary
    (`begin_turn`) they are forgotten until there is room for the caller's words and a reply of
    `reply_tokens`. Words that outgrow that room push more of them out of their own prompt alone:
    what a final prompt holds depends on its words, never on partial ones that came before.
    """

    def __init__(
        self,
        template: ChatTemplate,
        spec: PromptSpec,
        max_prompt_tokens: int,
        *,
        reply_tokens: int = 0,
    ) -> None:
        self._template = template
        self._spec = spec
        self._shared_system = spec.system  # the operator's own, which all clients are shown
        self._max_prompt_tokens = max_prompt_tokens
        self._max_spec_tokens = (max_prompt_tokens - reply_tokens) * 3 // 4
        self._max_history_tokens = (
            (max_prompt_tokens - reply_tokens) * (WORDS_SHARE - 1) // WORDS_SHARE
        )
        self._messages: list[_Message] = []
        self._revision = 0
        self._stable = ""
        self._num_stable_changes = 0

    @property
    def spec(self) -> PromptSpec:
        return self._spec

    def set_spec(self, spec: PromptSpec) -> None:
        """Raises PromptTooLarge, and keeps the old one, if it leaves no room for the caller;
        PromptRejected likewise."""
        self.check_spec(spec)
        self._spec = spec
        self.begin_turn()

    def check_spec(self, spec: PromptSpec) -> None:
        """Raises what `set_spec` would."""
        segments = self._segments((), "", spec)
        if (num_tokens := _num_tokens(segments)) > self._max_spec_tokens:
            raise PromptTooLarge(num_tokens, self._max_spec_tokens)

    def add(self, item_id: str, role: Role, text: str) -> None:
        """Append a finished message. Raises ItemRejected for a second message of the same id."""
        if any(message.item_id == item_id for message in self._messages):
            raise ItemRejected(item_id, "an item with this id exists already")
        self._messages.append(_Message(item_id, role, text))
        if len(self._messages) > MAX_MESSAGES:
            del self._messages[: self._after_turn(0)]

    def restore(self, item_id: str, role: Role, text: str) -> None:
        """Append a message that the client gives. Raises ItemRejected also for one that would not
        even fit alone."""
        alone = self._segments([_Message(item_id, role, text)], "")
        if (num_tokens := _num_tokens(alone)) > self._max_prompt_tokens:
            reason = f"makes a prompt of {num_tokens} tokens, {self._max_prompt_tokens} at most fit"
            raise ItemRejected(item_id, reason)
        self.add(item_id, role, text)

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
        del self._messages[: self._first_with_room("", num_kept=0)]

    def snapshot(
        self,
        slot: str | None,
        *,
        stable: str = "",
        at_pause: bool = False,
        max_reply_tokens: int | None = None,
        system: str | None = None,
    ) -> Snapshot:
        """The prompt with `slot` as the caller's running message (None: history alone).

        Where the words fit only without the oldest turns, these are left out. Words that fit with
        no history at all get all of it: the engine refuses them. `stable`: the words that are
        likely to stay. `system`: in place of the session's instructions, this once. Raises
        PromptRejected.
        """
        if system is not None:
            spec, self._spec = self._spec, replace(self._spec, system=system)
            try:
                return self.snapshot(
                    slot, stable=stable, at_pause=at_pause, max_reply_tokens=max_reply_tokens
                )
            finally:
                self._spec = spec
        self._revision += 1
        self._num_stable_changes += stable not in ("", self._stable)
        self._stable = stable
        words, num_kept = slot or "", 0
        if slot is None and self._messages and self._messages[-1].role == "user":
            # The client asked for a reply to what is there: its last message takes the slot.
            words, num_kept = self._messages[-1].text, 1
        last = len(self._messages) - num_kept
        segments = self._taken_prompt(0, last, words)
        if segments is None or _num_tokens(segments) > self._max_prompt_tokens:
            first = 0
            if (
                segments is None
                or _num_tokens(self._segments((), words)) <= self._max_prompt_tokens
            ):
                first = self._first_with_room(words, num_kept)
            segments = self._segments(self._messages[first:last], words)
        return Snapshot(
            self._revision, segments, at_pause, max_reply_tokens, self._num_stable_changes
        )

    def _taken_prompt(self, first: int, last: int, words: str) -> tuple[Segment, ...] | None:
        """Of the messages from `first` on, before `last`. None for a history that the template does
        not take: it is as good as too long."""
        try:
            return self._segments(self._messages[first:last], words)
        except PromptRejected:
            return None

    def _segments(
        self, history: Sequence[_Message], words: str, spec: PromptSpec | None = None
    ) -> tuple[Segment, ...]:
        spec = spec or self._spec
        messages = [ChatMessage(message.role, message.text) for message in history]
        try:
            segments = self._template.segments(
                spec.system, messages, words, before=spec.before, after=spec.after
            )
        except ChatTemplateError as cause:
            raise PromptRejected(str(cause)) from cause
        if spec.system == self._shared_system:
            return segments
        # How fast a shared prefix is there tells who else has it: a client's text stays its own.
        return tuple(
            replace(segment, role="history") if segment.role == "prefix" else segment
            for segment in segments
        )

    def _first_with_room(self, words: str, num_kept: int) -> int:
        """The first message, before the last `num_kept`, from which on the prompt leaves the room
        that it should; turns are left out whole."""
        first, last = 0, len(self._messages) - num_kept
        while first < last:
            segments = self._taken_prompt(first, last, words)
            if segments is None:
                first = self._after_turn(first)
                continue
            excess = _num_tokens(segments) - self._max_history_tokens
            if excess <= 0:
                break
            sizes = {segment.name: len(segment.token_ids) for segment in segments}
            start = first
            while excess > 0 and first < last:  # no new prompt for each turn
                after = self._after_turn(first)
                gone = range(first - start, after - start)
                excess -= sum(sizes.get(f"history.{index}", 0) for index in gone)
                first = after
        return first

    def _after_turn(self, first: int) -> int:
        """Behind a message and the replies to it."""
        after = first + 1
        while after < len(self._messages) and self._messages[after].role == "assistant":
            after += 1
        return after

    def _find(self, item_id: str) -> _Message:
        for message in self._messages:
            if message.item_id == item_id:
                return message
        raise ItemNotFound(item_id)


def longest_reply(template: ChatTemplate, spec: PromptSpec, max_prompt_tokens: int) -> int:
    """The most `reply_tokens` with which a conversation can have this prompt; below 1: none."""
    segments = template.segments(spec.system, (), "", before=spec.before, after=spec.after)
    return max_prompt_tokens - -(-4 * _num_tokens(segments) // 3)


def _num_tokens(segments: Iterable[Segment]) -> int:
    return sum(len(segment.token_ids) for segment in segments)
