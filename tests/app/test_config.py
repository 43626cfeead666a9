from __future__ import annotations

import pytest
from pydantic import ValidationError

from app.config import AppConfig, load_config
from app.errors import BadConfig


def test_the_environment_sets_what_arguments_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORESPEAK_PORT", "9000")
    monkeypatch.setenv("FORESPEAK_THREADS_ENGINE", "1")
    config = AppConfig(host="0.0.0.0")
    assert (config.host, config.port, config.threads.engine) == ("0.0.0.0", 9000, 1)


def test_the_default_listens_to_this_machine_only() -> None:
    assert AppConfig().host == "127.0.0.1"


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"port": 70_000}, "port"),
        ({"temperature": 3.0}, "temperature"),
        ({"dtype": "int3"}, "dtype"),
        ({"asr_device": "tpu"}, "asr_device"),
        ({"no_such_key": 1}, "no_such_key"),
        ({"max_sessions": 0}, "max_sessions"),
    ],
)
def test_wrong_values_and_unknown_keys_are_refused_by_name(
    values: dict[str, object], named: str
) -> None:
    with pytest.raises(ValidationError, match=named):
        AppConfig(**values)  # type: ignore[arg-type]


def test_what_is_wrong_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORESPEAK_MAX_SESSIONS", "0")
    with pytest.raises(BadConfig) as caught:
        load_config(temperature=9.0, port=None)
    message = str(caught.value)
    assert "temperature=9.0" in message and "max_sessions='0'" in message and "\n" not in message


def test_a_variable_that_no_setting_reads_is_refused_with_the_likely_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FORESPEAK_MAX_SESSION", "3")
    monkeypatch.setenv("FORESPEAK_COLOUR", "red")
    with pytest.raises(BadConfig) as caught:
        load_config()
    message = str(caught.value)
    assert "FORESPEAK_MAX_SESSION: no such setting; did you mean FORESPEAK_MAX_SESSIONS?" in message
    assert "FORESPEAK_COLOUR" in message


def test_every_variable_of_the_parts_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MODELS_DIR", "THREADS_VOICE", "PRICE_REPLY", "second_opinion_below"):
        monkeypatch.setenv(f"FORESPEAK_{name}", "-1" if name.islower() else "2")
    config = load_config()
    assert (config.threads.voice, config.prices.reply, config.second_opinion_below) == (2, 2, -1)


def test_prices_come_from_the_configuration() -> None:
    assert AppConfig(price_reply=2.0).prices.reply == 2.0
    assert AppConfig().prices.reply is None
