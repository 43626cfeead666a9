"""From proposals and a pass's choices to what is shown and delivered."""

from __future__ import annotations

from typing import Any

from llm_engine.events import DraftChanged, ReplyDelta, ReplyDone, SamplingParams, SessionConfig
from llm_engine.turn_reply import TurnReply
from tests.llm_engine.engine_rig import ByteTokenizer


def reply_side(**settings: Any) -> TurnReply:
    tokenizer: Any = ByteTokenizer()
    config = SessionConfig(sampling=SamplingParams(max_tokens=20), **settings)
    reply = TurnReply("s1", config, tokenizer, tie_bound=1e-3)
    reply.change_prompt((), (1, 2), room=100, is_exact=True)
    return reply


def decide(reply: TurnReply, tokens: bytes, now_s: float = 0.0) -> int:
    """One pass per token, without proposals."""
    return sum(reply.decide((), (token,), (1.0,), now_s) for token in tokens)


def test_tokens_are_taken_up_to_the_first_wrong_proposal_and_one_more() -> None:
    reply = reply_side()
    num_right = reply.decide(tuple(b"abX"), tuple(b"abcd"), (1.0,) * 4, 0.0)
    assert num_right == 2 and bytes(reply.draft.token_ids) == b"abc"


def test_a_right_proposal_list_gives_one_token_on_top() -> None:
    reply = reply_side()
    assert reply.decide(tuple(b"ab"), tuple(b"abc"), (1.0,) * 3, 0.0) == 2
    assert bytes(reply.draft.token_ids) == b"abc"


def test_nothing_behind_the_end_of_message_counts() -> None:
    reply = reply_side()
    num_right = reply.decide(tuple(b"abc"), (97, 256, 99, 100), (1.0,) * 4, 0.0)
    assert num_right == 1 and reply.draft.finish == "stop"
    assert bytes(reply.draft.token_ids) == b"a"


def test_the_old_draft_is_proposed_for_the_new_prompt_and_keeps_its_times() -> None:
    reply = reply_side()
    decide(reply, b"hello", now_s=1.0)
    reply.change_prompt((1, 2), (1, 3), room=100, is_exact=True)
    assert not reply.draft.token_ids
    proposals = reply.propose((1, 3))
    assert proposals and bytes(proposals) == b"hello"[: len(proposals)]
    reply.decide(proposals, (*proposals, 122), (1.0,) * (len(proposals) + 1), 2.0)
    kept = len(proposals)
    assert reply.draft.decided_at_s == [1.0] * kept + [2.0]


def test_without_keep_drafts_nothing_is_proposed_or_remembered() -> None:
    reply = reply_side(keep_drafts=False)
    decide(reply, b"hello")
    reply.change_prompt((1, 2), (1, 3), room=100, is_exact=True)
    assert reply.propose((1, 3)) == ()
    reply.change_prompt((1, 3), (1, 2), room=100, is_exact=True)
    assert not reply.draft.token_ids


def test_a_prompt_that_returns_has_its_reply_decided() -> None:
    reply = reply_side()
    decide(reply, b"hello")
    reply.change_prompt((1, 2), (1, 3), room=100, is_exact=True)
    decide(reply, b"bye")
    reply.change_prompt((1, 3), (1, 2), room=100, is_exact=True)
    assert bytes(reply.draft.token_ids) == b"hello"
    reply.change_prompt((1, 2), (1, 2), room=100, is_exact=True)  # only rows were lost
    assert bytes(reply.draft.token_ids) == b"hello"


def test_another_turn_knows_nothing_of_the_drafts_before_but_may_guess_from_them() -> None:
    reply = reply_side(use_ngram_pool=True)
    decide(reply, b"hello there")
    reply.start_turn()
    reply.change_prompt((1, 2), (1, 2, 3), room=100, is_exact=True)
    assert not reply.draft.token_ids
    decide(reply, b"hel")
    assert bytes(reply.propose((1, 2, 3)))[:1] == b"l"


def test_the_draft_is_shown_with_what_stays_of_the_one_before() -> None:
    reply = reply_side()
    decide(reply, b"hell")
    (shown,) = reply.show(1)
    assert isinstance(shown, DraftChanged) and shown.keep_tokens == 0 and shown.text == "hell"
    reply.change_prompt((1, 2), (1, 3), room=100, is_exact=True)
    assert reply.show(2) == []
    decide(reply, b"help")
    (shown,) = reply.show(2)
    assert isinstance(shown, DraftChanged)
    assert shown.keep_tokens == 3 and bytes(shown.token_ids) == b"p" and shown.text == "help"


def test_delivery_is_gapless_and_ends_once() -> None:
    reply = reply_side()
    decide(reply, b"yes")
    (first,) = reply.deliver(4, 1.0)
    assert isinstance(first, ReplyDelta) and first.first_index == 0 and first.text == "yes"
    assert reply.deliver(4, 1.0) == []
    decide(reply, b"! ")
    reply.decide((), (256,), (1.0,), 2.0)
    second, done = reply.deliver(4, 2.0)
    assert isinstance(second, ReplyDelta) and second.first_index == 3 and second.text == "! "
    assert isinstance(done, ReplyDone) and done.reason == "stop" and done.stats.reply_tokens == 5


def test_an_abandoned_reply_says_why() -> None:
    reply = reply_side()
    (cancelled,) = reply.abandon(0, 1.0)
    (failed,) = reply.abandon(0, 1.0, "it broke")
    assert isinstance(cancelled, ReplyDone) and cancelled.reason == "cancelled"
    assert isinstance(failed, ReplyDone) and failed.reason == "error"
    assert failed.error == "it broke"


def test_drafts_that_never_survive_are_kept_short_until_a_pause() -> None:
    reply = reply_side(draft_first_sentence=False)
    for number in range(12):
        decide(reply, b"0123456789abc")
        reply.change_prompt((number,), (number + 1,), room=100, is_exact=True)
        reply.decide(reply.propose((number + 1,)), (140 + number,), (1.0,), 0.0)
    decide(reply, b"0123456789abc")
    assert not reply.wants_first_tokens(at_pause=False)
    assert reply.wants_first_tokens(at_pause=True)
