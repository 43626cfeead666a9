"""What one session asks to run, and what it makes of the outcome."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llm_engine.events import SamplingParams, SessionConfig, SpeculationTrigger, SuffixPolicy
from llm_engine.kv_cache import KVCache
from llm_engine.layout import Layout
from llm_engine.prompt import Snapshot
from llm_engine.scheduler import WorkClass
from llm_engine.sequence import MAX_SCORED_PROPOSALS, Outcome, Sequence
from llm_engine.sequence_kv import SequenceKV
from llm_engine.turn_reply import TurnReply
from tests.llm_engine.engine_rig import ByteTokenizer, Events, prompt

TOKENIZER: Any = ByteTokenizer()
WORDS = tuple(b"good morning")


def sequence(max_tokens: int = 200, **settings: Any) -> Sequence:
    config = SessionConfig(**{"sampling": SamplingParams(max_tokens=20), **settings})
    kv = SequenceKV(KVCache(1024), "", slot_rows=8)
    reply = TurnReply("s1", config, TOKENIZER, 1e-3)
    return Sequence("s1", config, Events(), kv, reply, max_tokens)


def set_prompt(made: Sequence, snapshot: Snapshot, turn: int | None = None) -> None:
    made.set_prompt(snapshot, Layout.of(snapshot, TOKENIZER.is_punctuation), 1.0, turn)


def step(made: Sequence, tokens: bytes = b"", budget: int = 100) -> int:
    """Run one pass whose choices are `tokens` (as many as are asked for); -> tokens run."""
    feed = made.feed(budget)
    assert feed.num_samples == len(tokens)
    score = None if feed.score_at is None else 0.5
    made.advance(feed, Outcome(tuple(tokens), (1.0,) * len(tokens), score), 2.0)
    return feed.num_tokens


def test_a_prompt_is_run_in_chunks_and_only_the_last_gives_a_token() -> None:
    made = sequence()
    set_prompt(made, prompt(0, WORDS))
    work = made.work()
    assert work is not None and work.num_tokens == 3 + len(WORDS) + 2
    assert work.work_class is WorkClass.DRAFT and work.prefix_key is not None
    assert step(made, budget=10) == 10
    assert step(made, b"a") == 7
    assert step(made, b"b") == 1
    work = made.work()
    assert work is not None and work.prefix_key is None


def test_the_score_is_read_where_the_last_word_runs() -> None:
    made = sequence()
    set_prompt(made, prompt(0, (*WORDS, 63)))
    feed = made.feed(100)
    assert feed.score_at == 3 + len(WORDS) - 1 and feed.sample_from == 3 + len(WORDS) + 2


def test_a_word_that_has_its_row_already_is_run_again_for_its_score() -> None:
    made = sequence(score_snapshots=True)
    set_prompt(made, prompt(0, WORDS), turn=0)
    step(made, b"\x50")  # ends the message at once
    assert made.is_over and made.work() is None
    ids = prompt(0, WORDS).token_ids
    set_prompt(made, prompt(1, WORDS))
    feed = made.feed(100)
    assert feed.score_at is not None and feed.num_tokens == 2  # the word, and the prompt's end
    assert made.turn == 1 and made.prompt_ids == ids


def test_without_speculation_only_the_score_is_wanted_and_its_rows_are_dropped() -> None:
    made = sequence(trigger=SpeculationTrigger.OFF)
    set_prompt(made, prompt(0, WORDS))
    work = made.work()
    assert work is not None and work.work_class is WorkClass.SCORE
    assert step(made) == 3 + len(WORDS)
    assert made.work() is None
    set_prompt(made, prompt(1, WORDS), turn=0)
    work = made.work()
    assert work is not None and work.num_tokens == len(WORDS) + 2  # the prefix is shared
    silent = sequence(trigger=SpeculationTrigger.OFF, score_snapshots=False)
    set_prompt(silent, prompt(0, WORDS))
    assert silent.work() is None


def test_with_the_stable_trigger_rows_follow_every_snapshot_and_drafts_stable_words() -> None:
    made = sequence(trigger=SpeculationTrigger.STABLE)
    set_prompt(made, prompt(0, WORDS[:4]))
    assert step(made) == 3 + 4 + 2 and made.work() is None  # the rows, and no token
    set_prompt(made, replace(prompt(2, WORDS[:6]), num_stable_changes=2))  # one was replaced
    work = made.work()
    assert work is not None and work.work_class is WorkClass.DRAFT and work.num_tokens == 2 + 2
    step(made, b"a")
    set_prompt(made, replace(prompt(3, WORDS[:8]), num_stable_changes=2))
    assert step(made) == 2 + 2 and made.work() is None
    set_prompt(made, replace(prompt(4, WORDS[:8], at_pause=True), num_stable_changes=2))
    feed = made.feed(100)
    assert feed.sample_from is not None and feed.proposals == tuple(b"a")  # nothing is lost


def test_a_committed_reply_asks_for_its_prompt_then_for_one_token_after_another() -> None:
    made = sequence()
    set_prompt(made, prompt(0, WORDS), turn=0)
    work = made.work()
    assert work is not None and work.work_class is WorkClass.COMMITTED_PREFILL
    step(made, b"a")
    work = made.work()
    assert work is not None
    assert work.work_class is WorkClass.COMMITTED_DECODE and work.num_tokens == 1
    assert made.is_running and not made.is_idle


def test_drafting_stops_at_its_budget_but_not_at_a_pause() -> None:
    made = sequence(max_turn_draft_tokens=2)
    set_prompt(made, prompt(0, WORDS))
    step(made, b"a")
    step(made, b"b")
    assert made.work() is None
    set_prompt(made, prompt(1, WORDS, at_pause=True))
    work = made.work()
    assert work is not None and work.work_class is WorkClass.PAUSE_DRAFT


def test_a_draft_on_approximate_rows_is_only_a_candidate_for_the_exact_prompt() -> None:
    made = sequence(draft_policy=SuffixPolicy.ROTATE, draft_first_sentence=False)
    suffix = tuple(range(30, 38))
    set_prompt(made, prompt(0, WORDS, suffix=suffix))
    step(made, b"a")
    set_prompt(made, prompt(1, (*WORDS, 97), suffix=suffix))
    assert not made.kv.is_exact and not made.reply.draft.is_exact
    feed = made.feed(100)
    assert feed.num_prompt_tokens == 2  # the new word, and the last suffix token for its logits
    made.advance(feed, Outcome(tuple(b"ab")[: feed.num_samples], (1.0,) * feed.num_samples, 0.5), 2)
    set_prompt(made, prompt(2, (*WORDS, 97), suffix=suffix), turn=0)
    assert made.kv.is_exact and not made.reply.draft.token_ids
    feed = made.feed(100)
    assert feed.num_prompt_tokens == len(suffix) and feed.proposals[:1] == tuple(b"a")


def test_a_reply_ends_where_the_context_does() -> None:
    made = sequence(max_tokens=len(prompt(0, WORDS).token_ids) + 2)
    set_prompt(made, prompt(0, WORDS), turn=0)
    step(made, b"a")
    step(made, b"b")
    assert made.reply.draft.finish == "length" and made.is_over


def test_a_refused_commit_ends_its_turn() -> None:
    made = sequence()
    (done,) = made.refuse(3, 1.0, "no rows")
    assert done.turn == 3 and done.reason == "error"  # type: ignore[union-attr]
    assert made.work() is None
    set_prompt(made, prompt(0, WORDS))
    assert made.turn == 4


def test_the_pass_that_scores_a_pause_checks_few_tokens_of_the_old_draft() -> None:
    counts = []
    for at_pause in (False, True):
        made = sequence(draft_first_sentence=False)
        made.reply = TurnReply("s1", made.config, TOKENIZER, 1e-3, token_cost=0.0)
        set_prompt(made, prompt(0, WORDS))
        for token in b"abcdefghijklmno":
            step(made, bytes([token]))
        set_prompt(made, prompt(1, (*WORDS, 97), at_pause=at_pause))
        work, feed = made.work(), made.feed(100)
        assert work is not None and work.num_tokens == feed.num_tokens
        counts.append(len(feed.proposals))
    assert counts[1] == MAX_SCORED_PROPOSALS < counts[0]
