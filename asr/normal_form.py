"""The form in which transcripts enter prompts, and the one in which they are compared (pure).

Whisper's hypotheses of the same words flip between "Light rose", "light rose." and "light rose":
flips that mean nothing but change the reply of a language model and break its drafts. `prompt_form`
maps all of them to one text, written as people write to an assistant, because models reply better
to that:

- sentences begin with a capital; other words keep the case they were heard in (names, acronyms)
- commas, semicolons, colons, dashes, quotes and ellipses between words are dropped; those inside a
  number or a word ("2:30", "1,000", "it's", "twenty-one") stay
- "." and "!" between sentences become ".", a question mark stays everywhere
- no full stop at the end (the strongest flip of all); a question mark at the end stays

`normal_form` is stricter and only for comparing: lower case, letters, digits, apostrophes.
"""

from __future__ import annotations

import re

_SPACES = re.compile(r"\s+")
_INNER = r"(?:[.,:'’\-/@&][^\W_]+)*"  # marks that belong to the word they stand in
_WORD = re.compile(rf"[$€£#]?[^\W_]+{_INNER}%?")
_TOKEN = re.compile(rf"{_WORD.pattern}|[.!?。！？]+")
_SENTENCE_ENDS = frozenset(".!?。！？")
_QUESTION_ENDS = frozenset("?？")
_COMPARED = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")


def normal_form(text: str) -> str:
    """Lower-cased words separated by single spaces; equal for hypotheses that say the same."""
    return " ".join(word.replace("’", "'") for word in _COMPARED.findall(text.lower()))


def ends_sentence(text: str) -> bool:
    return text.rstrip()[-1:] in _SENTENCE_ENDS


def prompt_form(text: str) -> str:
    """The canonical prompt text of one hypothesis (rules above). Idempotent."""
    pieces: list[str] = []
    starts_sentence = True
    for token in _TOKEN.findall(text):
        if token[-1] in _SENTENCE_ENDS and not token[0].isalnum():
            if pieces:
                _end_sentence(pieces, token)
                starts_sentence = True
            continue
        word = token.replace("’", "'")
        pieces.append(word[:1].upper() + word[1:] if starts_sentence else word)
        starts_sentence = False
    return _SPACES.sub(" ", " ".join(pieces)).removesuffix(".")


def _end_sentence(pieces: list[str], mark: str) -> None:
    last = pieces[-1]
    if last[-1] in "?.":
        return
    pieces[-1] = last + ("?" if _QUESTION_ENDS & set(mark) else ".")
