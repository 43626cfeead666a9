from __future__ import annotations

from app import messages as m
from app.protocols.realtime_settings import SessionDefaults
from app.protocols.realtime_state import RealtimeState, ResponseRequest, error_event


def test_a_request_is_sent_once_and_only_after_the_words_it_answers():
    state = RealtimeState("s", SessionDefaults(), is_beta=False)
    state.request = ResponseRequest(m.ReplyRequested(), speaks=True)
    state.num_commits_open = 1
    assert list(state.send_request()) == []
    state.num_commits_open = 0
    assert list(state.send_request()) == [m.ReplyRequested()]
    assert list(state.send_request()) == []


def test_ids_are_new_and_name_their_session():
    state = RealtimeState("s", SessionDefaults(), is_beta=False)
    ids = [state.new_id("event") for _ in range(3)]
    assert len(set(ids)) == 3 and all(event_id.startswith("event_s_") for event_id in ids)


def test_only_text_is_echoed_as_an_event_id():
    assert error_event("c", "m", client_event_id="e1")["error"]["event_id"] == "e1"
    assert error_event("c", "m", client_event_id={"x": 1})["error"]["event_id"] is None
