from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_engine.tokenizer import Tokenizer
from llm_engine.vocabulary import TokenizerNotFound
from tests.llm_engine.families import Family

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
MANY = settings(max_examples=150)
# transformers' GGUF reader does not isolate SmolLM2's digits: it differs where blanks precede one,
# and at any other numeral of several bytes, which may begin with a byte that a blank merges with.
# It takes Qwen3's control tokens that are not "special" (<tool_call>) for such also in plain text.
# Its Llama 2 puts no blank before a text that begins with one; sentencepiece and the file do.
DIFFERS = {"smollm2": re.compile(r"\s\s\d"), "llama2": re.compile(r"^[ ▁]")}


def differs(family: Family, text: str) -> bool:
    """Whether transformers' ids of the text are known to be others, and why: see above."""
    pattern = DIFFERS.get(family.name)
    if pattern is not None and pattern.search(text):
        return True
    if any(not token.is_special and token.text in text for token in family.tokenizer.control):
        return True
    is_numeral = [ord(c) > 127 and unicodedata.category(c)[0] == "N" for c in text]
    return family.name == "smollm2" and any(is_numeral)


# SmolLM2's vocabulary has no tokens for some bytes.
HAS_NO_TOKEN = re.compile("[\x00-\x1f\U00040000-\U0010ffff]")
SAMPLES = (
    "",
    "Hello, world!",
    "It's 12:30 — I'd like two tickets for the 7pm show.",
    "  leading and trailing  ",
    "Année Ωμέγα 你好 🙂👩‍👩‍👧",
    "tabs\tand\nnew\r\nlines\n\n\nthree",
    "<|im_end|>\n<|im_start|>system <|eot_id|><|end_of_text|></s>",
)


def twin_ids(family: Family, text: str) -> list[int]:
    """Of transformers, told as we are that a spelling such as <|im_end|> is text."""
    encoded = family.twin(text, add_special_tokens=False, split_special_tokens=True)
    ids: list[int] = encoded["input_ids"]
    return ids


@pytest.mark.models
def test_ids_equal_those_of_transformers(family: Family) -> None:
    for text in SAMPLES:
        if differs(family, text):
            continue
        assert list(family.tokenizer.encode(text)) == twin_ids(family, text), text


@pytest.mark.models
@pytest.mark.parametrize("numeral", ["5", "\u00bc", "\u0663", "\u2167"])
def test_smollm2_s_numerals_stand_alone(family: Family, numeral: str) -> None:
    if family.name == "smollm2":
        encode = family.tokenizer.encode
        assert [*encode("a "), *encode(numeral)] == list(encode(f"a {numeral}"))


@pytest.mark.models
@MANY
@given(text=ANY_TEXT)
def test_any_text_has_the_ids_of_transformers(family: Family, text: str) -> None:
    if differs(family, text):
        return
    assert list(family.tokenizer.encode(text)) == twin_ids(family, text)


@pytest.mark.models
@MANY
@given(text=ANY_TEXT)
def test_decoding_gives_the_text_back(family: Family, text: str) -> None:
    if family.name == "smollm2":
        text = HAS_NO_TOKEN.sub("", text)
    ids = family.tokenizer.encode(text)
    if family.name == "qwen3":
        text = unicodedata.normalize("NFC", text)
    if family.name == "llama2":
        text = text.replace("▁", " ")  # its stand-in for a blank
    assert family.tokenizer.decode(ids) == text


@pytest.mark.models
def test_decoding_equals_that_of_transformers_and_leaves_special_tokens_out(family: Family) -> None:
    ids = [*family.tokenizer.encode("So, a reply."), min(family.tokenizer.eos_ids)]
    expected = family.twin.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert family.tokenizer.decode(ids) == expected == "So, a reply."


@pytest.mark.models
def test_no_spelling_of_a_control_token_gives_one(family: Family) -> None:
    for token in family.tokenizer.control:
        for text in (token.text, f" {token.text}", f"a{token.text}b", token.text * 3):
            for continues in (False, True):
                ids = family.tokenizer.encode(text, continues=continues)
                assert family.tokenizer.control_ids.isdisjoint(ids), text


@pytest.mark.models
@MANY
@given(data=st.data())
def test_no_mix_of_text_and_control_spellings_gives_one(
    family: Family, data: st.DataObject
) -> None:
    spelling = st.sampled_from([token.text for token in family.tokenizer.control])
    text = data.draw(st.lists(st.one_of(spelling, ANY_TEXT), max_size=5).map("".join))
    assert family.tokenizer.control_ids.isdisjoint(family.tokenizer.encode(text))


@pytest.mark.models
def test_end_of_message_ids_are_those_of_the_template(family: Family) -> None:
    expected = {
        "smollm2": {"<|im_end|>", "<|endoftext|>"},
        "qwen3": {"<|im_end|>", "<|endoftext|>"},
        "llama3_1": {"<|eot_id|>", "<|end_of_text|>", "<|eom_id|>"},
        "llama2": {"</s>"},
    }[family.name]
    texts = {token.token_id: token.text for token in family.tokenizer.control}
    found = {texts[token] for token in family.tokenizer.eos_ids}
    assert found == expected & set(texts.values())
    assert family.twin.eos_token_id in family.tokenizer.eos_ids


def test_sentence_ends_are_marks_with_quotes_and_blanks_only(smollm2_tokenizer: Tokenizer) -> None:
    texts = {smollm2_tokenizer.token_bytes(i) for i in smollm2_tokenizer.sentence_end_ids}
    assert {b".", b"?", b"!", b' "?'.strip(), b'."', b" ?"} <= texts
    assert not texts & {b"...", b"..", b",", b";", b"a.", b'"', b")", b"<|im_end|>"}


def test_only_trailing_punctuation_counts_as_such(smollm2_tokenizer: Tokenizer) -> None:
    def is_punctuation(text: str) -> bool:
        (token,) = smollm2_tokenizer.encode(text)
        return smollm2_tokenizer.is_punctuation(token)

    assert all(is_punctuation(text) for text in (".", "?", "!", ",", "...", " -", '."'))
    assert not any(is_punctuation(text) for text in ("%", "$", "a", " the", "5", "+"))
    assert not smollm2_tokenizer.is_punctuation(min(smollm2_tokenizer.eos_ids))


def test_ids_beyond_the_vocabulary_have_no_text(smollm2_tokenizer: Tokenizer) -> None:
    assert smollm2_tokenizer.token_bytes(smollm2_tokenizer.vocab_size) == b""
    assert smollm2_tokenizer.token_bytes(-1) == b""


def test_a_prefix_blank_goes_before_the_first_run_only(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(
        """{"added_tokens": [{"id": 0, "content": "<s>", "special": true, "lstrip": false,
            "rstrip": false, "single_word": false, "normalized": false}],
            "normalizer": null, "post_processor": null,
            "pre_tokenizer": {"type": "Metaspace", "replacement": "▁",
                              "prepend_scheme": "first", "split": false},
            "decoder": {"type": "Metaspace", "replacement": "▁",
                        "prepend_scheme": "first", "split": false},
            "model": {"type": "BPE", "vocab": {"<s>": 0, "▁": 1, "a": 2, "▁a": 3},
                      "merges": [["▁", "a"]]}}""",
        "utf-8",
    )
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.encode("a a") == (3, 3)
    assert tokenizer.encode("a a", continues=True) == (2, 3)


def test_a_path_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerNotFound, match=re.escape(str(tmp_path))):
        Tokenizer(tmp_path)
