from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf import GGUFWriter, TokenType

from llm_engine.tokenizer import Tokenizer
from llm_engine.vocabulary import UnsupportedTokenizer, read_vocabulary


def write_gguf(
    path: Path,
    pre: str,
    texts: list[str],
    merges: list[str],
    control: set[int],
    model: str = "gpt2",
) -> Path:
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(texts)
    kinds = [TokenType.CONTROL if i in control else TokenType.NORMAL for i in range(len(texts))]
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(max(control))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.mark.models
@pytest.mark.parametrize(("name", "pre"), [("qwen3", "qwen2"), ("llama3_1", "llama-bpe")])
def test_a_vocabulary_in_a_gguf_file_gives_the_same_ids(
    name: str, pre: str, tokenizer_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    spec = json.loads((tokenizer_dir(name) / "tokenizer.json").read_text("utf-8"))
    added = {token["content"]: token["id"] for token in spec["added_tokens"]}
    by_id = {i: text for text, i in (spec["model"]["vocab"] | added).items()}
    texts = [by_id[i] for i in range(len(by_id))]
    merges = [m if isinstance(m, str) else " ".join(m) for m in spec["model"]["merges"]]
    file = write_gguf(tmp_path / "vocab.gguf", pre, texts, merges, set(added.values()))
    ours, reference = Tokenizer(file), Tokenizer(tokenizer_dir(name))
    for text in ("It's 12345 o'clock,\n\n  I'D say…", "Cafe\u0301 你好 🙂", "x = {'a': 1}\t\r\n"):
        assert ours.encode(text) == reference.encode(text)
    assert ours.control_ids == reference.control_ids


def test_other_kinds_of_gguf_vocabulary_are_refused_by_name(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "v.gguf", "default", ["a", "<s>"], [], {1}, model="llama")
    with pytest.raises(UnsupportedTokenizer, match="'llama'"):
        read_vocabulary(file)


def test_an_unknown_pre_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "v.gguf", "klingon", ["a", "<s>"], [], {1})
    with pytest.raises(UnsupportedTokenizer, match="'klingon'"):
        read_vocabulary(file)


def test_a_broken_json_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{", "utf-8")
    with pytest.raises(UnsupportedTokenizer, match=r"tokenizer\.json: .*not JSON"):
        read_vocabulary(tmp_path)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("{}", "incomplete"),
        ('{"model": {"type": "BPE"}}', "incomplete"),
        ('{"model": {"type": "Unigram", "vocab": [["a", -1.0]]}}', "'Unigram'"),
        ('{"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 1}]}', "incomplete"),
    ],
)
def test_an_incomplete_or_foreign_description_is_refused(
    tmp_path: Path, spec: str, problem: str
) -> None:
    (tmp_path / "tokenizer.json").write_text(spec, "utf-8")
    with pytest.raises(UnsupportedTokenizer, match=problem):
        read_vocabulary(tmp_path)


def test_a_gguf_file_without_token_types_is_refused(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "v.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(UnsupportedTokenizer, match="token_type"):
        read_vocabulary(tmp_path / "v.gguf")
