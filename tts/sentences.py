"""Reply text → speakable pieces, while the text still grows.

A piece is given out only once what follows its end is known ("Dr." or "3." may go on), so that the
pieces are a function of the whole text alone: any division of the text into pushes gives the same
pieces. That is what lets a piece synthesised for a draft be delivered for the committed reply.
"""

from __future__ import annotations

import re
from enum import Enum, auto

MAX_FIRST_CHARS = 36  # about 2 s of speech from eight tokens: the first audio waits for no more
MAX_PIECE_CHARS = 240
MIN_CLAUSE_CHARS = 16  # about 1 s of speech: long enough to hide the synthesis of what follows
LOOKAHEAD_CHARS = 40  # the most text after an end that can decide about it
MAX_GAP_CHARS = 12  # more white space than this ends a piece, whatever follows

_CANDIDATE = re.compile(r"[.!?…]+|[。！？]+|\n|[,;:—–]")
_CLOSERS = "\"”'’)]*_`»"
_ENDS = ".!?…。！？"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Never the end of a sentence when a word follows.
_ALWAYS_GO_ON = _words(
    """
    mr mrs ms mx dr prof rev fr gen col capt cmdr lt sgt maj hon gov sen mt ft messrs e.g
    i.e eg ie cf vs viz approx ca resp fig figs eq pp nos incl excl
    """
)
# The end of a sentence only if a typical first word of one follows ("the U.S. President", "5 p.m.
# Then").
_MAYBE_GO_ON = _words(
    """
    etc inc ltd co corp jr sr st dept ave blvd rd rep pres vol ch a.m p.m ph.d m.d b.a m.a
    b.sc m.sc
    """
)
# Not the end of a sentence before a number ("No. 5", "Jan. 3").
_BEFORE_NUMBERS = _words(
    """
    no jan feb mar apr jun jul aug sep sept oct nov dec
    """
)
_STARTERS = _words(
    """
    a an the this that these those there here it its i i'm i'll i've i'd he she we you they
    my your his her our their what who where when why how which if in on at as for from with
    by to after before while although because since so and but or yet then now also however
    please let is are was were do does did can could would should will have has no not yes
    some many most each every both all one
    """
)


class _Verdict(Enum):
    END = auto()
    GO_ON = auto()
    UNKNOWN = auto()  # depends on text that is not there yet


class SentenceSplitter:
    """Split one reply. `push` and `finish` return pieces without surrounding white space, never
    empty.

    The pieces, joined, are the text but for white space at their borders. The first piece may end
    at a clause, so that speech starts early. Pieces are at most MAX_FIRST_CHARS / MAX_PIECE_CHARS
    long (a closing quote may follow).
    """

    def __init__(self) -> None:
        self._rest = ""
        self._is_first = True

    def push(self, text: str) -> list[str]:
        """Take more text, return the pieces that are certain by now."""
        self._rest += text
        return self._take(is_final=False)

    def finish(self) -> list[str]:
        """The text is complete: return what is left. The splitter is then as new."""
        pieces = self._take(is_final=True)
        self._rest, self._is_first = "", True
        return pieces

    def _take(self, *, is_final: bool) -> list[str]:
        pieces: list[str] = []
        while True:
            self._rest = self._rest.lstrip()
            if not self._rest:
                return pieces
            end = _find_end(self._rest, is_first=self._is_first, is_final=is_final)
            if end is None:
                return pieces
            pieces.append(self._rest[:end].rstrip())
            self._rest = self._rest[end:]
            self._is_first = False


def _find_end(text: str, *, is_first: bool, is_final: bool) -> int | None:
    """Where the first piece of `text` ends, or None if that is not decided yet.

    Decisions are taken on a window of fixed size, so that they never depend on how much text has
    arrived beyond it.
    """
    max_chars = MAX_FIRST_CHARS if is_first else MAX_PIECE_CHARS
    window = text[: max_chars + LOOKAHEAD_CHARS]
    is_complete = is_final or len(text) >= max_chars + LOOKAHEAD_CHARS
    for match in _CANDIDATE.finditer(window):
        if match.start() >= max_chars:
            break
        end = match.end()
        while end < len(window) and match[0][0] in _ENDS and window[end] in _CLOSERS:
            end += 1
        verdict = _judge(
            window, match, end, is_first=is_first, is_last=is_final and len(text) <= len(window)
        )
        if verdict is _Verdict.UNKNOWN and not is_complete:
            return None
        if verdict is _Verdict.END:
            return end
    if len(text) > max_chars:  # every mark within reach goes on, whatever follows
        return _forced_cut(window, max_chars)
    return len(text) if is_final else None


def _judge(
    window: str, match: re.Match[str], end: int, *, is_first: bool, is_last: bool
) -> _Verdict:
    """Does a piece end at `end`, which follows the mark `match` and its closing quotes?"""
    mark = match[0]
    if mark == "\n":
        return _Verdict.END
    rest = window[end:]
    if not rest:  # the mark itself may still grow ("..", "?!")
        return _Verdict.END if is_last else _Verdict.UNKNOWN
    if mark[0] in "。！？":
        return _Verdict.END
    if not rest[0].isspace():
        return _Verdict.GO_ON
    gap = len(rest) - len(rest.lstrip())
    if gap > MAX_GAP_CHARS or "\n" in rest[:gap]:
        return _Verdict.END if mark[0] in _ENDS or "\n" in rest[:gap] else _Verdict.GO_ON
    after = rest[gap:]
    if not after:
        return _Verdict.END if is_last else _Verdict.UNKNOWN
    if mark[0] not in _ENDS:
        is_long_enough = is_first and match.start() >= MIN_CLAUSE_CHARS
        return _Verdict.END if is_long_enough else _Verdict.GO_ON
    return _judge_sentence_end(window, match, end, after)


def _judge_sentence_end(window: str, match: re.Match[str], end: int, after: str) -> _Verdict:
    is_closed = end > match.end()
    mark = match[0]
    if mark in ("!", "?", "?!", "!?", "!!", "??", "!!!", "???"):
        # "Really?" she asked.
        return _Verdict.GO_ON if is_closed and after[0].islower() else _Verdict.END
    if after[0].islower():
        return _Verdict.GO_ON
    if mark != ".":  # an ellipsis: a pause within the sentence unless a new one clearly begins
        return _starts_sentence(after, besides=("i", "i'm", "i'll", "i've", "i'd"))
    word = window[: match.start()].split()[-1:] or [""]
    bare = word[0].lstrip("(\"“'‘*_[").lower()
    if is_closed:
        return _Verdict.END
    if _is_list_number(window[: match.start()]):
        return _Verdict.GO_ON
    if bare in _ALWAYS_GO_ON or (bare in _BEFORE_NUMBERS and after[0].isdigit()):
        return _Verdict.GO_ON
    if bare in _MAYBE_GO_ON or _is_initial(bare):
        return _starts_sentence(after)
    return _Verdict.END


def _starts_sentence(after: str, besides: tuple[str, ...] = ()) -> _Verdict:
    """Is the first word of `after` a typical first word of a sentence? `besides` are not."""
    found = re.match(
        r"[\W_]*([\w'’]+)(.?)", after[: LOOKAHEAD_CHARS - MAX_GAP_CHARS - 1], re.DOTALL
    )
    if found is None or not found[2]:  # the word may still grow
        is_endless = len(after) >= LOOKAHEAD_CHARS - MAX_GAP_CHARS - 1
        return _Verdict.GO_ON if is_endless else _Verdict.UNKNOWN
    word = found[1].lower().replace("’", "'")
    return _Verdict.END if word in _STARTERS and word not in besides else _Verdict.GO_ON


def _is_initial(bare: str) -> bool:
    """One letter ("J. Smith") or letters and dots ("U.S.")."""
    return re.fullmatch(r"\w(\.\w)*", bare) is not None and not bare.isdigit()


def _is_list_number(before: str) -> bool:
    """Is the full stop after `before` that of "1." at the head of a list entry?"""
    return re.search(r"(?:^|[\n:;,])\s*[*_]*\d{1,2}$", before) is not None


def _forced_cut(window: str, max_chars: int) -> int:
    """A place to cut text without an end in time: after its last clause mark, else space, else
    anywhere.
    """
    clauses = [m.end() for m in re.finditer(r"[,;:—–](?=\s)", window[: max_chars + 1])]
    if clauses and clauses[-1] >= max_chars // 3:
        return clauses[-1]
    space = window.rfind(" ", max_chars // 3, max_chars + 1)
    return space if space > 0 else max_chars


_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_FENCE = re.compile(r"```\w*")
_LINE_MARK = re.compile(r"^\s*(?:#{1,6}\s+|>\s?|[-*+•]\s+)", re.MULTILINE)
_EMPHASIS = re.compile(r"\*{2,}|_{2,}|~~|`|(?<!\w)\*(?=\S)|(?<=\S)\*(?!\w)|(?<!\w)_|_(?!\w)")
_TIMES = re.compile(r"(?<=\d)\s*\*\s*(?=\d)")
_RULE = re.compile(r"^\s*(?:[-*_]\s*){3,}$", re.MULTILINE)
_TABLE = re.compile(r"\s*\|[\s|:-]*")
_SCHEME = re.compile(r"\b(?:https?://|mailto:)(?:www\.)?", re.IGNORECASE)
_UNSPOKEN = re.compile(
    "[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e"
    "\ufe0f\U0001f000-\U0001faff\u2600-\u27bf]"
)


def speakable(text: str) -> str:
    """`text` as it is to be spoken: without Markdown, link targets, emoji or control characters;
    one line.

    Empty if nothing in it can be spoken.
    """
    text = _UNSPOKEN.sub(" ", text)
    text = _LINK.sub(r"\1", text)
    text = _FENCE.sub(" ", text)
    text = _RULE.sub(" ", text)
    text = _LINE_MARK.sub("", text)
    text = _TABLE.sub(", ", text)
    text = _TIMES.sub(" times ", text)
    text = _EMPHASIS.sub("", text)
    text = _SCHEME.sub("", text)
    text = re.sub(r"(?<=\w)_(?=\w)", " ", text)
    text = re.sub(r"\s+", " ", text).strip().lstrip(", ")
    return text if re.search(r"\w", text) else ""
