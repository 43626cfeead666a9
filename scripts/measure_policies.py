"""Measure the suffix policies on prompts with a long suffix: the table of docs/engine.md.

    .venv/bin/python scripts/measure_policies.py [--num-prompts 32] [--num-tokens 24]

Every prompt is the shipped `museum` one with another question, asked in two steps: what the caller
has said so far, then one word more. JSON on the last line.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import mean, median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from app.model_store import resolve_llm
from app.prompt_spec import load_prompt
from llm_engine.chat import ChatTemplate
from llm_engine.events import SuffixPolicy
from llm_engine.layout import Layout
from llm_engine.model import load_model
from llm_engine.policy_drift import Drift, PolicyProbe
from llm_engine.prompt import Snapshot
from llm_engine.tokenizer import Tokenizer

QUESTIONS = (
    "when do you open on Thursday",
    "how much is a ticket for a student",
    "is the cafe still open",
    "where can I find the bridge room",
    "what can I see about the Brooklyn Bridge today",
    "how old is the Brooklyn Bridge",
    "I lost my umbrella where should I go",
    "do children pay for a ticket",
    "are you open on Mondays",
    "until when can I buy a ticket",
    "what is on the ground floor",
    "how long did it take to build the bridge",
    "can I get a sandwich somewhere",
    "is there a discount for seniors",
    "who built the bridge",
    "what should I look at first",
    "do you have a model of the towers",
    "where is the entrance",
    "when was the bridge opened",
    "what time do you close on Sunday",
    "can my dog come in",
    "where are the toilets please",
    "is there a room about ships",
    "how do I get to the main stairs",
    "could you tell me the opening hours again",
    "we are two adults and one child what do we pay",
    "is it busy in the afternoon",
    "may I take photographs here",
    "do you sell postcards",
    "how late is it now",
    "what is the most famous thing in here",
    "thank you and goodbye",
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--llm", default=None)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--num-prompts", type=int, default=len(QUESTIONS))
    parser.add_argument("--num-tokens", type=int, default=24)
    arguments = parser.parse_args()
    path = resolve_llm(arguments.llm)
    tokenizer = Tokenizer(path)
    template = ChatTemplate(tokenizer)
    probe = PolicyProbe(load_model(path, arguments.dtype))
    spec = load_prompt("museum")
    found: dict[SuffixPolicy, list[Drift]] = {policy: [] for policy in SuffixPolicy}
    for question in QUESTIONS[: arguments.num_prompts]:
        words = question.split()
        layouts = []
        for count in (len(words) - 1, len(words)):
            segments = template.segments(
                spec.system, (), " ".join(words[:count]), before=spec.before, after=spec.after
            )
            layouts.append(Layout.of(Snapshot(count, segments), tokenizer.is_punctuation))
        for drift in probe.compare(*layouts, arguments.num_tokens):
            found[drift.policy].append(drift)
        print(f"{question}: {[d.num_survived for d in (found[p][-1] for p in found)]}", flush=True)
    print("| policy | top-1 agreement | KL | equal replies | tokens surviving | edit, ms |")
    print("|---|---|---|---|---|---|")
    figures = {}
    for policy, drifts in found.items():
        agreement = sum(d.num_agreeing for d in drifts) / sum(d.num_tokens for d in drifts)
        row = {
            "agreement": round(agreement, 4),
            "kl": round(mean(d.divergence for d in drifts), 4),
            "equal": round(mean(d.is_equal_reply for d in drifts), 3),
            "survived": round(mean(d.num_survived for d in drifts), 1),
            "ms": round(median(d.seconds for d in drifts) * 1e3, 1),
        }
        figures[str(policy)] = row
        print(f"| `{policy}` | " + " | ".join(str(value) for value in row.values()) + " |")
    print(json.dumps({"num_prompts": arguments.num_prompts, **figures}))


if __name__ == "__main__":
    main()
