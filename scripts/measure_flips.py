"""Measure what a flip of case or punctuation costs in broken drafts: the table of docs/asr.md.

    .venv/bin/python scripts/measure_flips.py [--num-tokens 24]

Counts how successive hypotheses of the recorded partial streams (`app/bench/partials.json`) differ,
and answers every final with and without each kind of flip: the drafted tokens that survive are
those before the first different one. JSON on the last line.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from app.model_store import resolve_llm
from app.prompt_spec import default_prompt
from asr.normal_form import normal_form, prompt_form
from llm_engine.chat import ChatTemplate
from llm_engine.engine import Engine
from llm_engine.engine_config import EngineConfig
from llm_engine.events import EngineEvent, ReplyDelta, ReplyDone, SamplingParams, SessionConfig
from llm_engine.model import load_model
from llm_engine.prompt import Snapshot
from llm_engine.tokenizer import Tokenizer

RECORDED = Path(__file__).resolve().parent.parent / "app" / "bench" / "partials.json"
FLIPS: dict[str, Callable[[str], str]] = {
    "question mark at the end": lambda text: f"{text}?",
    "full stop at the end": lambda text: f"{text}.",
    "dots at the end": lambda text: f"{text}...",
    "comma after the second word": lambda text: " ".join(_with_comma(text.split())),
    "small first letter": lambda text: text[:1].lower() + text[1:],
}


def _with_comma(words: list[str]) -> list[str]:
    return [f"{word}," if index == 1 else word for index, word in enumerate(words)]


def kind_of_change(before: str, after: str) -> str:
    if normal_form(before) != normal_form(after):
        return "words"
    if prompt_form(before) != prompt_form(after):
        return "a question mark, or a capital inside"
    return "nothing" if before == after else "marks and capitals that the form drops"


class Replies:
    """The reply's first tokens to a message, by an engine that has seen nothing before."""

    def __init__(self, llm: str | None, dtype: str, num_tokens: int) -> None:
        path = resolve_llm(llm)
        self._tokenizer = Tokenizer(path)
        self._template = ChatTemplate(self._tokenizer)
        self._engine = Engine(load_model(path, dtype), self._tokenizer, EngineConfig())
        self._config = SessionConfig(sampling=SamplingParams(max_tokens=num_tokens))

    def to(self, text: str) -> list[int]:
        found: list[int] = []
        is_over = False

        def on_event(event: EngineEvent) -> None:
            nonlocal is_over
            if isinstance(event, ReplyDelta):
                found.extend(event.token_ids)
            is_over = is_over or isinstance(event, ReplyDone)

        session = self._engine.open(self._config, on_event)
        spec = default_prompt()
        segments = self._template.segments(
            spec.system, (), text, before=spec.before, after=spec.after
        )
        self._engine.commit(session, Snapshot(0, segments))
        while not is_over:
            self._engine.step()
        self._engine.close(session)
        return found


def num_surviving(draft: list[int], reply: list[int]) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(draft, reply, strict=False)) if a != b),
        min(len(draft), len(reply)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--llm", default=None)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--num-tokens", type=int, default=24)
    arguments = parser.parse_args()
    streams = json.loads(RECORDED.read_text(encoding="utf-8"))
    changes = Counter(
        kind_of_change(before, after)
        for stream in streams
        for before, after in pairwise([*stream["partials"], stream["final"]])
    )
    num_changes = sum(changes.values())
    for kind, count in changes.most_common():
        print(f"{kind}: {count} of {num_changes} successive hypotheses")
    replies = Replies(arguments.llm, arguments.dtype, arguments.num_tokens)
    texts = [prompt_form(stream["final"]).rstrip("?") for stream in streams]
    plain = [replies.to(text) for text in texts]
    survived = {}
    print("| flip | drafted tokens that survive, mean | replies that stay the same |")
    print("|---|---|---|")
    for name, flip in FLIPS.items():
        flipped = [replies.to(flip(text)) for text in texts]
        counts = [num_surviving(*pair) for pair in zip(plain, flipped, strict=True)]
        equal = mean(before == after for before, after in zip(plain, flipped, strict=True))
        survived[name] = {"survive": round(mean(counts), 1), "equal": round(equal, 2)}
        print(f"| {name} | {survived[name]['survive']} | {survived[name]['equal']} |", flush=True)
    lengths = round(mean(len(reply) for reply in plain), 1)
    print(json.dumps({"changes": dict(changes), "drafted": lengths, **survived}))


if __name__ == "__main__":
    main()
