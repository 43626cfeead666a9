from __future__ import annotations

import pytest

from app.admission import Admission, Refused, TokenRequired, is_loopback

LOCAL = {"Host": "127.0.0.1:8080"}
PATH = "/v1/realtime"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]", "127.9.9.9"])
def test_loopback_addresses_need_no_token(host):
    assert is_loopback(host)
    Admission().check_address(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.com", "", "localhost.x"])
def test_any_other_address_is_refused_without_a_token(host):
    with pytest.raises(TokenRequired, match="FORESPEAK_TOKEN") as caught:
        Admission().check_address(host)
    assert caught.value.host == host
    Admission(token="secret").check_address(host)


def test_clients_that_are_no_browsers_name_no_origin():
    Admission().check_websocket(PATH, LOCAL, [])


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost:8080", "[::1]:8080"])
def test_the_page_itself_is_let_in(host):
    Admission().check_websocket(PATH, {"Host": host, "Origin": f"http://{host}"}, [])


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1:8080", "https://evil.example"),
        ("127.0.0.1:8080", "http://127.0.0.1:9999"),
        ("127.0.0.1:8080", "null"),
        ("127.0.0.1:8080", ""),
        ("127.0.0.1:8080", "http://["),
        ("", ""),
        ("evil.example:8080", "http://evil.example:8080"),  # a name made to resolve to us
    ],
)
def test_foreign_pages_are_refused(host, origin):
    with pytest.raises(Refused, match="origin") as caught:
        Admission().check_websocket(PATH, {"Host": host, "Origin": origin}, [])
    assert caught.value.status == 403


def test_a_listed_origin_is_let_in():
    rules = Admission(allowed_origins=("https://talk.example",))
    rules.check_websocket(PATH, LOCAL | {"Origin": "https://talk.example"}, [])
    with pytest.raises(Refused):
        rules.check_websocket(PATH, LOCAL | {"Origin": "https://talk.example.evil"}, [])


def test_with_a_token_the_page_may_be_reached_by_any_name():
    headers = {"Host": "talk.example", "Origin": "https://talk.example"}
    Admission(token="s").check_websocket(f"{PATH}?token=s", headers, [])


@pytest.mark.parametrize(
    ("path", "headers", "subprotocols"),
    [
        (PATH, {"Authorization": "Bearer s3cret"}, []),
        (PATH, {"Authorization": "bearer  s3cret "}, []),
        (f"{PATH}?model=x&token=s3cret", {}, []),
        (PATH, {}, ["realtime", "openai-insecure-api-key.s3cret"]),
    ],
)
def test_the_token_is_taken_from_header_query_or_subprotocol(path, headers, subprotocols):
    Admission(token="s3cret").check_websocket(path, LOCAL | headers, subprotocols)


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        (PATH, {}),
        (PATH, {"Authorization": "Bearer wrong"}),
        (PATH, {"Authorization": "s3cret"}),
        (PATH, {"Authorization": "Basic s3cret"}),
        (PATH, {"Authorization": "Bearer \udcff"}),
        (f"{PATH}?token=", {}),
    ],
)
def test_a_missing_or_wrong_token_is_refused_without_naming_it(path, headers):
    with pytest.raises(Refused, match="token") as caught:
        Admission(token="s3cret").check_websocket(path, LOCAL | headers, ["realtime"])
    assert caught.value.status == 401 and "s3cret" not in str(caught.value)
