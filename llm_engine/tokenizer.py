"""Text to token ids and back, with no way for text to become a control token.

The vocabulary comes from a GGUF file or from a folder with `tokenizer.json` and is handed to the
`tokenizers` library without its added tokens: those (`<|im_end|>`, `<think>` …) are not part of the
BPE model that text runs through, so that only the chat template can place them, by id.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from llm_engine.vocabulary import UnsupportedTokenizer, Vocabulary, read_vocabulary

# Tokens that end a message or the text, in the templates of the supported families.
_END_OF_MESSAGE = {
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "</s>",
}
_SENTENCE_ENDS = frozenset(".?!。？！")
_CLOSERS = frozenset("\"'”’»)]")
_TRAILING_PUNCTUATION = frozenset(".,;:!?…-–—。？！、，") | _CLOSERS


class Tokenizer:
    """Text ↔ ids of one model.

    `path`: a .gguf file, or a folder with tokenizer.json (and tokenizer_config.json,
    chat_template.jinja). Raises TokenizerNotFound, UnsupportedTokenizer, BadGGUF.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        source = read_vocabulary(path)
        self.control = source.control
        self.control_ids: frozenset[int] = frozenset(token.token_id for token in source.control)
        self.named_tokens = source.named
        self.chat_template = source.chat_template
        self.is_byte_level = _is_byte_level(path, source.spec)
        texts: dict[int, str] = {i: text for text, i in source.spec["model"]["vocab"].items()}
        texts.update({token.token_id: token.text for token in source.control})
        self.vocab_size = max(texts) + 1
        self._texts = [texts.get(i, "") for i in range(self.vocab_size)]
        self._hidden_ids = frozenset(t.token_id for t in source.control if t.is_special)
        self._backend = _build_backend(path, source, continues=False)
        self._continuing = (
            _build_backend(path, source, continues=True)
            if _prefixes_only_the_first(source.spec)
            else self._backend
        )
        named_ends = {t.token_id for t in source.control if t.text in _END_OF_MESSAGE}
        self.eos_ids = source.end_ids | named_ends

    def encode(self, text: str, *, continues: bool = False) -> tuple[int, ...]:
        """Ids of plain text: no BOS, no control token. `continues`: a control token precedes it."""
        return self.encode_with_ends(text, continues=continues)[0]

    def encode_with_ends(
        self, text: str, *, continues: bool = False
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids, and for each the index in `text` just after the last character it covers."""
        backend = self._continuing if continues else self._backend
        encoding = backend.encode(text, add_special_tokens=False)
        return tuple(encoding.ids), tuple(end for _, end in encoding.offsets)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of the ids, special tokens left out, broken UTF-8 shown as U+FFFD."""
        text = b"".join(self.token_bytes(i) for i in token_ids).decode("utf-8", "replace")
        return text if self.is_byte_level else text.removeprefix(" ")

    def token_bytes(self, token_id: int) -> bytes:
        """What the token adds to the text; nothing for special tokens and ids without a text."""
        if token_id in self._hidden_ids or not 0 <= token_id < self.vocab_size:
            return b""
        text = self._texts[token_id]
        if token_id in self.control_ids:
            return text.encode("utf-8")
        if self.is_byte_level:
            return bytes(_BYTE_OF_CHARACTER[c] for c in text)
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            return bytes([int(text[3:5], 16)])
        return text.replace("▁", " ").encode("utf-8")

    def is_punctuation(self, token_id: int) -> bool:
        """Whether the token is nothing but trailing punctuation (and blanks around it)."""
        text = self._plain_text(token_id)
        return bool(text) and _TRAILING_PUNCTUATION.issuperset(text)

    @cached_property
    def sentence_end_ids(self) -> frozenset[int]:
        """Ids of ".", "?", "!" and their variants with blanks or closing quotes, as in `."`.

        An ellipsis is none: it says that more follows.
        """
        return frozenset(i for i in range(self.vocab_size) if self._ends_sentence(i))

    def _ends_sentence(self, token_id: int) -> bool:
        text = self._plain_text(token_id)
        ends = [c for c in text if c in _SENTENCE_ENDS]
        closers = [c for c in text if c in _CLOSERS]
        is_ellipsis = ends.count(".") > 1
        starts_as_end = text[:1] in _SENTENCE_ENDS or text[:1] in _CLOSERS
        return (
            bool(ends)
            and len(ends) + len(closers) == len(text)
            and not is_ellipsis
            and starts_as_end
        )

    def _plain_text(self, token_id: int) -> str:
        if token_id in self.control_ids:
            return ""
        return self.token_bytes(token_id).decode("utf-8", "replace").strip()


def _build_backend(path: Path, source: Vocabulary, *, continues: bool) -> Backend:
    """The library's tokenizer without control tokens, not even as words of the vocabulary."""
    model = dict(source.spec["model"])
    banned = {token.text for token in source.control} - {model.get("unk_token")}
    model["vocab"] = {text: i for text, i in model["vocab"].items() if text not in banned}
    spec: dict[str, Any] = {
        "version": "1.0",
        "normalizer": source.spec.get("normalizer"),
        "pre_tokenizer": source.spec.get("pre_tokenizer"),
        "decoder": None,
        "post_processor": None,
        "model": model,
        "added_tokens": [],
    }
    if continues:
        spec["pre_tokenizer"] = {**spec["pre_tokenizer"], "prepend_scheme": "never"}
    try:
        return Backend.from_str(json.dumps(spec))
    except Exception as cause:  # the library raises plain Exception
        raise UnsupportedTokenizer(path, str(cause)) from cause


def _prefixes_only_the_first(spec: dict[str, Any]) -> bool:
    pre = spec.get("pre_tokenizer") or {}
    return pre.get("type") == "Metaspace" and pre.get("prepend_scheme") == "first"


def _is_byte_level(path: Path, spec: dict[str, Any]) -> bool:
    decoder = spec.get("decoder") or {}
    kinds = {part["type"] for part in decoder.get("decoders", [decoder]) if "type" in part}
    if "ByteLevel" in kinds:
        return True
    if kinds & {"ByteFallback", "Metaspace"}:
        return False
    raise UnsupportedTokenizer(path, f"decoder {sorted(kinds)}")


def _byte_of_character() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes: printable Latin-1 is itself, the rest from 256."""
    printable = [b for b in range(256) if chr(b).isprintable() and b != 0x20]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_of_character()
