from __future__ import annotations

import pytest

from app.conversation import MAX_MESSAGES, Conversation, longest_reply
from app.errors import ItemNotFound, ItemRejected, PromptRejected, PromptTooLarge
from app.prompt_spec import PromptSpec
from tests.app.fakes import FakeTemplate


def conversation(max_prompt_tokens: int = 10_000) -> Conversation:
    return Conversation(FakeTemplate(), PromptSpec("sys"), max_prompt_tokens)  # type: ignore[arg-type]


def prompt(of: Conversation, slot: str | None) -> str:
    return bytes(of.snapshot(slot).token_ids).decode()


def test_a_snapshot_holds_system_history_and_the_running_words() -> None:
    talk = conversation()
    talk.add("a", "user", "hi")
    talk.add("b", "assistant", "hello")
    assert prompt(talk, "what time") == "sysuser:hi|assistant:hello|what time|assistant:"


def test_revisions_rise_strictly() -> None:
    talk = conversation()
    revisions = [talk.snapshot("x").revision for _ in range(3)]
    assert revisions == sorted(set(revisions))


def test_snapshots_count_how_often_the_stable_words_changed() -> None:
    talk = conversation()
    stable_words = ("", "what", "what", "", "what time", "")
    counts = [talk.snapshot("what", stable=stable).num_stable_changes for stable in stable_words]
    assert counts == [0, 1, 1, 1, 2, 2]


def test_without_running_words_the_last_user_message_takes_the_slot() -> None:
    talk = conversation()
    talk.add("a", "user", "hi")
    assert prompt(talk, None) == "syshi|assistant:"


def test_the_prompts_fixed_parts_surround_the_callers_words() -> None:
    talk = conversation()
    talk.set_spec(PromptSpec("s", before="Q: ", after=" (be kind)"))
    assert prompt(talk, "why") == "sQ: why (be kind)|assistant:"


def test_a_reply_cut_short_keeps_what_was_heard_and_one_not_heard_goes() -> None:
    talk = conversation()
    talk.add("b", "assistant", "one two three")
    talk.set_text("b", "one two")
    assert talk.text_of("b") == "one two"
    talk.set_text("b", "")
    assert not talk.has("b")


def test_unknown_and_doubled_items_are_typed_errors() -> None:
    talk = conversation()
    talk.add("a", "user", "hi")
    with pytest.raises(ItemRejected, match="'a'"):
        talk.add("a", "user", "again")
    for change in (talk.delete, talk.text_of):
        with pytest.raises(ItemNotFound, match="'z'"):
            change("z")


def test_the_oldest_turn_goes_whole_when_the_prompt_grows_too_long() -> None:
    talk = conversation(max_prompt_tokens=60)
    talk.add("a", "user", "x" * 30)
    talk.add("b", "assistant", "y" * 10)
    talk.add("c", "user", "short")
    talk.begin_turn()
    assert not talk.has("a") and not talk.has("b") and talk.has("c")


def test_history_never_grows_beyond_its_bound() -> None:
    talk = conversation()
    for number in range(MAX_MESSAGES + 10):
        talk.add(str(number), "user", "x")
    assert not talk.has("0") and talk.has(str(MAX_MESSAGES + 9))
    assert prompt(talk, "").count("user:") <= MAX_MESSAGES


def test_instructions_that_leave_no_room_are_refused_and_the_old_ones_stay() -> None:
    talk = conversation(max_prompt_tokens=100)
    with pytest.raises(PromptTooLarge, match="at most"):
        talk.set_spec(PromptSpec("be brief. " * 100))
    assert prompt(talk, "hi").startswith("sys")


def test_history_leaves_a_share_of_the_room_to_the_callers_next_words() -> None:
    talk = conversation(max_prompt_tokens=400)
    for number in range(20):
        talk.add(str(number), "user", "x" * 30)
    talk.begin_turn()
    num_before = prompt(talk, "").count("user:")
    assert prompt(talk, "y" * 50).count("user:") == num_before
    assert len(prompt(talk, "y" * 50)) <= 400


def test_words_that_outgrow_their_room_cost_the_oldest_turns_and_not_their_own() -> None:
    talk = conversation(max_prompt_tokens=400)
    for number in range(10):
        talk.add(str(number), "user", "x" * 30)
        talk.add(f"{number}-reply", "assistant", "y" * 10)
    talk.begin_turn()
    assert len(prompt(talk, "z" * 200)) <= 400
    assert "z" * 200 in prompt(talk, "z" * 200)
    assert talk.has("9")  # no more goes than must


def test_partial_words_that_outgrow_their_room_change_nothing_for_the_final_ones() -> None:
    """The same reply with speculation and without: without, nobody sees the partial words."""
    talk = conversation(max_prompt_tokens=400)
    for number in range(8):
        talk.add(str(number), "user", "x" * 30)
    talk.begin_turn()
    before = prompt(talk, "z")
    assert len(prompt(talk, "z" * 300)) <= 400
    assert prompt(talk, "z") == before


def test_instructions_for_one_reply_cost_no_history() -> None:
    talk = conversation(max_prompt_tokens=400)
    for number in range(8):
        talk.add(str(number), "user", "x" * 30)
    talk.begin_turn()
    before = prompt(talk, "z")
    once = bytes(talk.snapshot("z", system="S" * 250).token_ids).decode()
    assert once.startswith("S" * 250) and once.endswith("z|assistant:") and len(once) <= 400
    assert prompt(talk, "z") == before


def test_words_that_fit_beside_no_history_cost_none_of_it() -> None:
    talk = conversation(max_prompt_tokens=400)
    talk.add("a", "user", "hi")
    assert len(prompt(talk, "z" * 500)) > 400
    assert talk.has("a")


def test_room_is_kept_for_a_reply_of_the_length_that_the_session_allows() -> None:
    talk = Conversation(FakeTemplate(), PromptSpec("sys"), 400, reply_tokens=200)  # type: ignore[arg-type]
    for number in range(10):
        talk.add(str(number), "user", "x" * 30)
    talk.begin_turn()
    assert len(prompt(talk, "")) <= 200


def test_restored_messages_that_do_not_fit_make_the_oldest_forgotten_but_never_the_last() -> None:
    talk = conversation(max_prompt_tokens=400)
    for number in range(MAX_MESSAGES):
        talk.restore(str(number), "user", "x" * 30)
    last = "q" * 370
    talk.restore("last", "user", last)
    assert prompt(talk, None) == f"sys{last}|assistant:"


def test_a_message_that_fits_in_no_prompt_is_refused() -> None:
    talk = conversation(max_prompt_tokens=400)
    talk.restore("a", "user", "hi")
    with pytest.raises(ItemRejected, match=r"'b'.* 400 at most"):
        talk.restore("b", "user", "x" * 400)
    assert prompt(talk, "") == "sysuser:hi||assistant:"


def test_a_history_that_the_template_does_not_take_is_forgotten_as_far_as_must_be() -> None:
    talk = conversation()
    for item_id, text in (("a", "hi"), ("b", "odd"), ("c", "bye")):
        talk.add(item_id, "user", text)
    assert prompt(talk, "well") == "sysuser:bye|well|assistant:"
    talk.add("d", "assistant", "odd")
    talk.begin_turn()
    assert prompt(talk, "well") == "syswell|assistant:"


def test_words_that_the_template_does_not_take_at_all_are_a_typed_error() -> None:
    talk = conversation()
    talk.add("a", "user", "hi")
    with pytest.raises(PromptRejected, match="odd"):
        talk.snapshot("odd")
    with pytest.raises(PromptRejected, match="odd"):
        talk.restore("b", "user", "odd")
    assert prompt(talk, "well") == "sysuser:hi|well|assistant:"


def test_only_the_operators_own_prompt_is_shared_between_sessions() -> None:
    talk = conversation()
    roles = [segment.role for segment in talk.snapshot("hi").segments]
    assert roles == ["prefix", "slot", "suffix"]
    talk.set_spec(PromptSpec("the client's"))
    private = talk.snapshot("hi")
    assert [segment.role for segment in private.segments] == ["history", "slot", "suffix"]
    assert bytes(private.token_ids).decode() == "the client'shi|assistant:"
    talk.set_spec(PromptSpec("sys"))
    assert talk.snapshot("hi").segments[0].role == "prefix"


def test_the_longest_reply_is_the_longest_beside_which_the_prompt_is_taken() -> None:
    template, spec = FakeTemplate(), PromptSpec("be brief. " * 10)
    most = longest_reply(template, spec, 400)  # type: ignore[arg-type]
    Conversation(template, spec, 400, reply_tokens=most).check_spec(spec)  # type: ignore[arg-type]
    with pytest.raises(PromptTooLarge):
        Conversation(template, spec, 400, reply_tokens=most + 1).check_spec(spec)  # type: ignore[arg-type]
    assert longest_reply(template, PromptSpec("x" * 300), 400) < 1  # type: ignore[arg-type]
