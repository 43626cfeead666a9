"""Commands from any thread: newest update wins, turns are numbered, stale revisions refused."""

from __future__ import annotations

import threading

import pytest

from llm_engine.errors import EngineUnavailable, PromptTooLong, StaleRevision, UnknownSession
from llm_engine.events import SessionConfig
from llm_engine.mailbox import Cancel, Commit, Mailbox, Open, Stake, Update
from llm_engine.prompt import Segment, Snapshot


def snapshot(revision: int, num_tokens: int = 3) -> Snapshot:
    return Snapshot(revision, (Segment("slot", "slot", tuple(range(num_tokens))),))


def box() -> tuple[Mailbox, str]:
    mailbox = Mailbox(max_sessions=4, max_prompt_tokens=10)
    session = mailbox.open(SessionConfig(), lambda event: None)
    mailbox.take()
    return mailbox, session


def test_a_newer_update_takes_the_place_of_one_that_waits() -> None:
    mailbox, session = box()
    for revision in range(5):
        mailbox.update(session, snapshot(revision))
    (command,) = mailbox.take()
    assert isinstance(command, Update) and command.snapshot.revision == 4
    mailbox.update(session, snapshot(5))
    assert len(mailbox.take()) == 1


def test_speculation_is_outweighed_by_what_makes_it_useless() -> None:
    mailbox, session = box()
    other = mailbox.open(SessionConfig(), lambda event: None)
    ids = (0, 1, 2)

    def outweighs(first_index: int, *sessions: str) -> bool:
        stake = Stake(ids, first_index, len(ids) - first_index + 1)  # and one of the draft
        return mailbox.outweighs(dict.fromkeys(sessions or (session,), stake))

    mailbox.take()
    assert not outweighs(2)
    mailbox.update(session, snapshot(0, 2))
    assert not outweighs(2)  # the caller is still speaking
    mailbox.take()
    segments = (Segment("slot", "slot", (0, 9, 2)),)
    mailbox.update(session, Snapshot(1, segments, at_pause=True))
    assert outweighs(2) and outweighs(3)  # token 1 is another: what follows it is lost
    assert outweighs(1) and outweighs(0)  # most of what is computed follows it
    assert not mailbox.outweighs({session: Stake(ids, 0, 2)})  # half of it stays
    assert not outweighs(2, session, other)  # shared with one that may still need it
    assert not mailbox.outweighs({session: None})
    mailbox.take()
    mailbox.commit(session, snapshot(2), 0.0)
    assert not outweighs(2) and not outweighs(3)  # the same prompt after all
    assert mailbox.outweighs({other: Stake(ids, 0, 3)})  # another's commit always


def test_an_update_does_not_jump_over_another_command() -> None:
    mailbox, session = box()
    mailbox.update(session, snapshot(0))
    mailbox.cancel(session)
    mailbox.update(session, snapshot(1))
    assert [type(command) for command in mailbox.take()] == [Update, Cancel, Update]


def test_a_commit_takes_the_place_of_a_waiting_update_and_numbers_the_turn() -> None:
    mailbox, session = box()
    mailbox.update(session, snapshot(0))
    assert mailbox.commit(session, snapshot(1), 0.0) == 0
    assert mailbox.commit(session, snapshot(2), 0.0) == 1
    commands = mailbox.take()
    assert [type(command) for command in commands] == [Commit, Commit]


def test_the_newest_snapshot_itself_may_be_committed_but_no_other_of_its_revision() -> None:
    mailbox, session = box()
    mailbox.update(session, snapshot(3))
    assert mailbox.commit(session, snapshot(3), 0.0) == 0
    with pytest.raises(StaleRevision):
        mailbox.commit(session, snapshot(3, num_tokens=4), 0.0)
    with pytest.raises(StaleRevision, match="revision 2 does not rise above 3"):
        mailbox.update(session, snapshot(2))
    with pytest.raises(PromptTooLong, match="11 tokens, the engine takes 10"):
        mailbox.update(session, snapshot(4, num_tokens=11))


def test_a_closed_session_is_unknown() -> None:
    mailbox, session = box()
    mailbox.close_session(session)
    with pytest.raises(UnknownSession, match=session):
        mailbox.update(session, snapshot(0))


def test_waiting_ends_when_something_comes_or_the_box_closes() -> None:
    mailbox, session = box()
    woken = threading.Event()

    def wait() -> None:
        mailbox.wait()
        woken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not woken.wait(0.05)
    mailbox.cancel(session)
    assert woken.wait(5)
    thread.join()
    mailbox.take()
    mailbox.close()
    mailbox.wait()
    with pytest.raises(EngineUnavailable, match="no further sessions: make another one"):
        mailbox.open(SessionConfig(), lambda event: None)


def test_threads_that_race_get_turns_without_gaps() -> None:
    mailbox, _ = box()
    session = mailbox.open(SessionConfig(), lambda event: None)
    turns: list[int] = []
    lock = threading.Lock()
    revisions = iter(range(1000))

    def commit() -> None:
        for _ in range(20):
            with lock:
                turns.append(mailbox.commit(session, snapshot(next(revisions)), 0.0))

    threads = [threading.Thread(target=commit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(turns) == list(range(80))
    assert sum(isinstance(command, Open) for command in mailbox.take()) == 1


def test_it_is_held_until_the_last_holder_lets_go() -> None:
    box = Mailbox(1, 100)
    box.hold("recogniser")
    box.hold("voice")
    box.hold("voice")
    box.release("voice")
    assert box.is_held
    box.release("recogniser")
    assert not box.is_held
    box.wait(timeout_s=60)  # returns at once: letting go wakes the engine


def test_letting_a_reply_go_wakes_the_engine_once_it_was_held() -> None:
    mailbox, _ = box()
    session = mailbox.open(SessionConfig(), lambda event: None)
    mailbox.take()
    mailbox.hold_reply(session)
    assert mailbox.held_replies == {session}
    mailbox.release_reply(session)
    assert not mailbox.held_replies
    mailbox.wait(timeout_s=60)  # returns at once
