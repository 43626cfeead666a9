"""A model's vocabulary as its files describe it, in one form: a GGUF file, or a folder.

The form is that of `tokenizer.json`, with the control tokens kept apart.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llm_engine.gguf_metadata import read_metadata

_GGUF_CONTROL, _GGUF_USER_DEFINED = 3, 4
_GPT2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
_BYTES_ONLY = {**_GPT2, "use_regex": False}
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _split(pattern: str) -> dict[str, Any]:
    regex = {"Regex": _CONTRACTIONS + pattern + _REST}
    return {"type": "Split", "pattern": regex, "behavior": "Isolated", "invert": False}


# `tokenizer.ggml.pre` names how a vocabulary cuts text into words before merging (llama.cpp,
# src/llama-vocab.cpp). SmolLM2 isolates each digit, which transformers' GGUF reader leaves out: the
# two differ only where several blanks precede a digit.
_PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {
    "gpt-2": [_GPT2],
    "smollm": [{"type": "Digits", "individual_digits": True}, _GPT2],
    "llama-bpe": [_split(r"\p{N}{1,3}"), _BYTES_ONLY],
    "qwen2": [_split(r"\p{N}"), _BYTES_ONLY],
}


class TokenizerError(ValueError):
    """Root of what can be wrong with a tokenizer's files."""


class TokenizerNotFound(TokenizerError):
    def __init__(self, path: Path) -> None:
        super().__init__(f"{path}: neither a .gguf file nor a folder with tokenizer.json")
        self.path = path


class UnsupportedTokenizer(TokenizerError):
    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: unsupported tokenizer: {problem}")
        self.path = path


@dataclass(frozen=True, slots=True)
class ControlToken:
    """A token that only the template places. `strip_*`: it swallows the blanks next to it."""

    token_id: int
    text: str
    is_special: bool = True  # left out of decoded text
    strip_left: bool = False
    strip_right: bool = False


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a GGUF file or a folder says, in one form. `spec` is `tokenizer.json`'s format."""

    spec: dict[str, Any]
    control: tuple[ControlToken, ...]
    named: dict[str, str]  # bos_token, eos_token … as templates want them
    chat_template: str | None
    end_ids: frozenset[int] = field(default_factory=frozenset)


def read_vocabulary(path: Path) -> Vocabulary:
    """Raises TokenizerNotFound, UnsupportedTokenizer, BadGGUF."""
    if path.suffix == ".gguf" and path.is_file():
        read = _from_gguf
    elif (path / "tokenizer.json").is_file():
        read = _from_folder
    else:
        raise TokenizerNotFound(path)
    try:
        vocabulary = read(path)
        is_known = isinstance(vocabulary.spec["model"]["vocab"], dict)
    except (LookupError, TypeError) as cause:
        raise UnsupportedTokenizer(path, f"incomplete ({cause!r})") from cause
    if not is_known:
        raise UnsupportedTokenizer(path, f"model {vocabulary.spec['model'].get('type')!r}")
    return vocabulary


def _from_gguf(path: Path) -> Vocabulary:
    metadata = read_metadata(path)
    kind = metadata.get("tokenizer.ggml.model")
    pre = metadata.get("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2" or pre not in _PRE_TOKENIZERS:
        names = ", ".join(_PRE_TOKENIZERS)
        raise UnsupportedTokenizer(
            path, f"kind {kind!r}, pre-tokenizer {pre!r} (of GGUF kind 'gpt2': {names})"
        )
    texts: list[str] = metadata["tokenizer.ggml.tokens"]
    kinds: list[int] = metadata["tokenizer.ggml.token_type"]
    if len(texts) != len(kinds):
        raise UnsupportedTokenizer(path, f"{len(texts)} tokens, but {len(kinds)} token types")
    control = tuple(
        ControlToken(i, text, is_special=kind == _GGUF_CONTROL)
        for i, (text, kind) in enumerate(zip(texts, kinds, strict=True))
        if kind in (_GGUF_CONTROL, _GGUF_USER_DEFINED)
    )
    spec = {
        "normalizer": {"type": "NFC"} if pre == "qwen2" else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": _PRE_TOKENIZERS[pre]},
        "decoder": _GPT2,
        "model": {
            "type": "BPE",
            "vocab": {text: i for i, text in enumerate(texts)},
            "merges": metadata["tokenizer.ggml.merges"],
            "ignore_merges": pre == "llama-bpe",
        },
    }
    ids = {name: metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "eot")}
    named = {f"{name}_token": texts[i] for name, i in ids.items() if i is not None}
    ends = frozenset(i for name, i in ids.items() if i is not None and name != "bos")
    return Vocabulary(spec, control, named, metadata.get("tokenizer.chat_template"), ends)


def _from_folder(path: Path) -> Vocabulary:
    spec = _read_json(path / "tokenizer.json")
    config = _read_json(path / "tokenizer_config.json")
    generation = _read_json(path / "generation_config.json")
    control = tuple(
        ControlToken(t["id"], t["content"], t["special"], t["lstrip"], t["rstrip"])
        for t in spec.get("added_tokens", [])
    )
    named = {
        name: value if isinstance(value, str) else value["content"]
        for name in ("bos_token", "eos_token", "unk_token", "pad_token")
        if (value := config.get(name))
    }
    ends = generation.get("eos_token_id", [])
    end_ids = set(ends if isinstance(ends, list) else [ends])
    end_ids |= {t.token_id for t in control if t.text == named.get("eos_token")}
    template_file = path / "chat_template.jinja"
    template = config.get("chat_template")
    if template_file.is_file():
        template = template_file.read_text("utf-8")
    elif isinstance(template, list):  # several, by name
        template = next((t["template"] for t in template if t["name"] == "default"), None)
    return Vocabulary(spec, control, named, template, frozenset(end_ids))


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text("utf-8"))
    except ValueError as cause:
        raise UnsupportedTokenizer(path, f"not JSON ({cause})") from cause
    if not isinstance(content, dict):
        raise UnsupportedTokenizer(path, "not a JSON object")
    return content
