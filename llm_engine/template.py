"""A chat template taken apart: its own texts, its control tokens, and holes for the messages.

It is rendered with a sentinel for each message text and split afterwards, once per *shape*: the
form of a prompt depends on the roles alone, and on which texts are blank.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from itertools import groupby
from os.path import commonprefix
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from llm_engine.tokenizer import Tokenizer

_MAX_SHAPES = 64
_SENTINEL = re.compile("\ue000([0-9]+)\ue001")  # private use: in no template
# what a template raises on purpose, and what its expressions may run into
_TEMPLATE_FAILURES = (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError)
_JOINER = "\n\n"  # between texts folded into one message


class ChatTemplateError(ValueError):
    """Root of what can go wrong between a conversation and its prompt."""


class NoChatTemplate(ChatTemplateError):
    def __init__(self, source: object) -> None:
        super().__init__(f"{source}: the model comes without a chat template")


class BrokenChatTemplate(ChatTemplateError):
    """The template itself cannot be read."""

    def __init__(self, source: object, problem: str) -> None:
        super().__init__(f"{source}: the chat template is broken: {problem}")


class TemplateRejected(ChatTemplateError):
    """The template does not take a conversation of this shape."""

    def __init__(self, roles: Sequence[str], problem: str) -> None:
        super().__init__(f"the chat template rejects the roles {', '.join(roles)}: {problem}")
        self.roles = tuple(roles)


class TemplateRewritesText(ChatTemplateError):
    """The template changes message texts in a way that cannot be followed (more than trimming)."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a rendered template depends on: roles, and texts where they are blank (else None)."""

    roles: tuple[str, ...]
    blanks: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of text or one control token; `owner` is the segment it goes to."""

    text: str
    control_id: int | None
    owner: str


@dataclass(frozen=True, slots=True)
class Hole:
    """Where message `index`'s text goes; the characters that the template trims off its ends."""

    index: int
    left_trim: str
    right_trim: str


class Skeletons:
    """The skeletons of one model's template.

    `now` is what the template's clock shows. Raises NoChatTemplate,
    BrokenChatTemplate.
    """

    def __init__(self, tokenizer: Tokenizer, now: datetime) -> None:
        if tokenizer.chat_template is None:
            raise NoChatTemplate(tokenizer.path)
        self._named_tokens = tokenizer.named_tokens
        try:
            self._template = _environment(now).from_string(tokenizer.chat_template)
        except jinja2.TemplateError as cause:
            raise BrokenChatTemplate(tokenizer.path, str(cause)) from cause
        self._control = {token.text: token for token in tokenizer.control}
        by_length = sorted(self._control, key=len, reverse=True)
        self._control_pattern = re.compile(f"({'|'.join(map(re.escape, by_length))})")
        self.of = lru_cache(_MAX_SHAPES)(self._build)

    def _build(self, shape: Shape) -> tuple[Piece | Hole, ...]:
        rendered: str | None = None
        contents: list[tuple[str, str]] = []
        problem = ""
        for contents in _attempts(shape):
            try:
                rendered = self._render(contents)
            except _TEMPLATE_FAILURES as error:
                problem = problem or str(error)
                continue
            expected = _indices("".join(text for _, text in contents))
            if sorted(_indices(rendered)) == sorted(expected):
                break
            problem, rendered = problem or "it leaves out or repeats a message", None
        if rendered is None:
            raise TemplateRejected(shape.roles, problem)
        trims = self._find_trims(rendered, contents)
        blank = shape.blanks[-1]
        if blank is not None:
            rendered = self._with_blank_user(rendered, contents, blank)
        return self._parse(rendered, trims, shape)

    def _render(self, contents: Sequence[tuple[str, str]]) -> str:
        return self._template.render(
            messages=[{"role": role, "content": text} for role, text in contents],
            add_generation_prompt=True,
            enable_thinking=False,
            tools=None,
            documents=None,
            **self._named_tokens,
        )

    def _find_trims(
        self, rendered: str, contents: Sequence[tuple[str, str]]
    ) -> dict[int, tuple[str, str]]:
        """Per sentinel the blanks that vanish left and right of it, found by trying each."""
        trims = {index: ["", ""] for index in _indices(rendered)}
        for blank in "\n ":
            for side, probe in enumerate((blank + r"\g<0>", r"\g<0>" + blank)):
                probed = self._render([(r, _SENTINEL.sub(probe, text)) for r, text in contents])
                for index, found in trims.items():
                    plain = _neighbour(rendered, index, side)
                    kept = plain + blank if side == 0 else blank + plain
                    seen = _neighbour(probed, index, side)
                    if seen == plain:
                        found[side] += blank
                    elif seen != kept:
                        raise TemplateRewritesText(f"around message {index}: {seen!r}")
        return {index: (left, right) for index, (left, right) in trims.items()}

    def _with_blank_user(
        self, rendered: str, contents: Sequence[tuple[str, str]], text: str
    ) -> str:
        """The prompt as rendered for a blank message, its sentinel put where the message begins.

        A template may trim the message together with what it wrote before it (Llama 2).
        """
        role, content = contents[-1]
        mark = _sentinel(_indices(content)[-1])
        blank = self._render([*contents[:-1], (role, content.replace(mark, text))])
        position = len(commonprefix([blank, rendered.split(mark)[0]]))
        return blank[:position] + mark + blank[position:]

    def _parse(
        self, rendered: str, trims: dict[int, tuple[str, str]], shape: Shape
    ) -> tuple[Piece | Hole, ...]:
        user = len(shape.roles) - 1
        keys = segment_keys(shape.roles)
        pieces = _SENTINEL.split(rendered)  # literal, index, literal, index, … literal
        parts: list[Piece | Hole] = []
        previous = ""
        for literal, index in zip(pieces[:-1:2], map(int, pieces[1::2]), strict=True):
            following = "header" if index == user else keys[index]
            cut = self._end_of_message(literal) if previous else 0
            parts += self._split(literal[:cut], previous)
            parts += self._split(literal[cut:], following)
            is_blank = index == user and shape.blanks[user] is not None
            parts.append(Hole(index, *(("\n ", "\n ") if is_blank else trims[index])))
            previous = "suffix" if index == user else keys[index]
        return (*parts, *self._split(pieces[-1], "suffix"))

    def _end_of_message(self, literal: str) -> int:
        """Up to where text between two messages belongs to the earlier one.

        That is its first control token and the blanks after that; without one, all of it.
        """
        match = re.search(f"{self._control_pattern.pattern}\\s*", literal)
        return match.end() if match else len(literal)

    def _split(self, literal: str, owner: str) -> list[Piece | Hole]:
        parts: list[Piece | Hole] = []
        for piece in filter(None, self._control_pattern.split(literal)):
            token = self._control.get(piece)
            if token is not None and (token.strip_left or token.strip_right):
                raise TemplateRewritesText(f"the control token {piece!r} strips its neighbours")
            parts.append(Piece(piece, token.token_id if token else None, owner))
        return parts


def _attempts(shape: Shape) -> Iterator[list[tuple[str, str]]]:
    """The conversation as it is, then in forms that stricter templates take.

    Without a system role (Llama 2 as Mistral wrote it) its text goes before the first user message;
    where roles must alternate, neighbours of one role become one message; where the user must
    begin, a conversation that the assistant begins is opened by an empty message (or by the system
    text), and system messages amid the conversation are the user's.
    """
    user = len(shape.roles) - 1
    plain = [
        (role, _sentinel(index) if blank is None or index == user else blank)
        for index, (role, blank) in enumerate(zip(shape.roles, shape.blanks, strict=True))
    ]
    folded = _fold_system(plain)
    yield plain
    yield folded
    yield _merge_neighbours(plain)
    yield _merge_neighbours(folded)
    strict = _opened_by_user([plain[0], *_without_system(plain[1:])])
    yield _merge_neighbours(strict)
    yield _merge_neighbours(_fold_system(strict))


def _fold_system(contents: list[tuple[str, str]]) -> list[tuple[str, str]]:
    if contents[0][0] != "system":
        return contents
    system, rest = contents[0][1], list(contents[1:])
    first = next(index for index, (role, _) in enumerate(rest) if role == "user")
    rest[first] = ("user", _JOINER.join(filter(None, (system, rest[first][1]))))
    return rest


def _without_system(contents: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [("user" if role == "system" else role, text) for role, text in contents]


def _opened_by_user(contents: list[tuple[str, str]]) -> list[tuple[str, str]]:
    start = 1 if contents[0][0] == "system" else 0
    opener = [("user", "")] if contents[start][0] == "assistant" else []
    return contents[:start] + opener + contents[start:]


def _merge_neighbours(contents: list[tuple[str, str]]) -> list[tuple[str, str]]:
    groups = groupby(contents, key=lambda content: content[0])
    return [(role, _JOINER.join(text for _, text in group)) for role, group in groups]


def segment_keys(roles: Sequence[str]) -> list[str]:
    """Names of the segments that hold the messages before the last."""
    has_system = roles[0] == "system"
    names = ["system"] if has_system else []
    return names + [f"history.{index}" for index in range(len(roles) - 1 - has_system)]


def _sentinel(index: int) -> str:
    return f"\ue000{index}\ue001"


def _indices(text: str) -> list[int]:
    return [int(index) for index in _SENTINEL.findall(text)]


def _neighbour(rendered: str, index: int, side: int) -> str:
    """Template text directly left (`side` 0) or right (1) of a sentinel."""
    part = rendered.split(_sentinel(index))[side]
    return _SENTINEL.split(part)[-1 if side == 0 else 0]


def _environment(now: datetime) -> ImmutableSandboxedEnvironment:
    """The sandbox that transformers renders chat templates in, its clock stopped at `now`."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )

    def to_json(value: Any, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=False, **options)

    def raise_exception(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = now.strftime
    return environment
