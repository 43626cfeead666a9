"""The server over real sockets, with a scripted runtime behind it."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import socket as sockets
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from openai import AsyncOpenAI
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from app.admission import TokenRequired
from app.config import AppConfig
from app.connection import CloseCode, Limits
from app.messages import AudioReceived, ErrorReported
from app.protocols.realtime import SessionDefaults
from app.server import Server, TlsUnusable
from app.web_assets import WebAssets
from tests.app.scripted_runtime import ScriptedRuntime

TIMEOUT_S = 20.0
AUDIO = base64.b64encode(bytes(24_000 * 2 * 6 // 10)).decode()  # 0.6 s: an utterance


@pytest.fixture
def assets(tmp_path):
    (tmp_path / "index.html").write_text("<!doctype html><title>page</title>")
    (tmp_path / "big.js").write_text("//" + "x" * 500_000)
    return WebAssets(tmp_path)


@pytest.fixture
def runtime():
    return ScriptedRuntime()


@pytest.fixture
def serving(runtime, assets):
    @asynccontextmanager
    async def serving(limits: Limits | None = None, **config: Any) -> AsyncIterator[Server]:
        settings = AppConfig(**({"port": 0} | config))
        server = Server(runtime, settings, SessionDefaults(), assets=assets, limits=limits)
        await server.start()
        try:
            yield server
        finally:
            await asyncio.wait_for(server.drain(0.2), TIMEOUT_S)
            assert runtime.num_sessions == 0, "a session outlived its connection"

    return serving


@pytest.fixture
async def server(serving):
    async with serving() as server:
        yield server


def socket_url(server: Server, query: str = "") -> str:
    return server.url.replace("http", "ws", 1) + "v1/realtime" + query


@asynccontextmanager
async def client_of(server: Server, **options: Any) -> AsyncIterator[Any]:
    async with connect(socket_url(server), max_size=None, **options) as client:
        yield client


async def receive(client: Any, kind: str) -> dict[str, Any]:
    """The next event of that kind; those before it are skipped."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            event = json.loads(await client.recv())
            if event["type"] == kind:
                return event


async def send(client: Any, kind: str, **fields: Any) -> None:
    await client.send(json.dumps({"type": kind} | fields))


async def closed_with(client: Any) -> int:
    async with asyncio.timeout(TIMEOUT_S):
        try:
            while True:
                await client.recv()
        except ConnectionClosed as closed:
            assert closed.rcvd is not None
            return closed.rcvd.code


async def fetch(url: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    def get() -> tuple[int, dict[str, str], bytes]:
        request = urllib.request.Request(url, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return answer.status, dict(answer.headers), answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, dict(error.headers), error.read()

    return await asyncio.to_thread(get)


# ---- plain requests


async def test_the_page_is_served_with_its_policy(server):
    status, headers, content = await fetch(server.url)
    assert status == 200 and b"<title>page" in content
    assert "script-src 'self'" in headers["Content-Security-Policy"]
    status, _, content = await fetch(server.url, **{"If-None-Match": headers["ETag"]})
    assert (status, content) == (304, b"")


async def test_a_large_file_arrives_whole(server):
    _, headers, content = await fetch(server.url + "big.js")
    assert len(content) == int(headers["Content-Length"]) == 500_002


async def test_health_is_reported(server):
    async with client_of(server):
        status, _, content = await fetch(server.url + "healthz")
        assert status == 200
        assert json.loads(content) == {"status": "ok", "sessions": 1}


async def test_an_unknown_path_is_not_found(server):
    for path in ("nothing", "../app/server.py", "v1/other"):
        assert (await fetch(server.url + path))[0] == 404


async def test_a_plain_get_of_the_socket_asks_for_an_upgrade(server):
    assert (await fetch(server.url + "v1/realtime"))[0] == 426


# ---- who is let in


async def test_a_foreign_page_is_refused(server):
    with pytest.raises(InvalidStatus) as caught:
        async with client_of(server, origin="https://evil.example"):
            pass
    assert caught.value.response.status_code == 403


async def test_a_token_is_asked_for_where_one_is_set(serving):
    async with serving(token="s3cret") as server:
        with pytest.raises(InvalidStatus) as caught:
            async with client_of(server):
                pass
        assert caught.value.response.status_code == 401
        async with connect(socket_url(server, "?token=s3cret")) as client:
            await receive(client, "session.created")


def test_an_open_address_without_a_token_is_refused_at_once(runtime, assets):
    with pytest.raises(TokenRequired, match=r"0\.0\.0\.0"):
        Server(runtime, AppConfig(host="0.0.0.0"), SessionDefaults(), assets=assets)


async def test_browsers_pass_the_token_as_a_subprotocol(serving):
    names = ["realtime", "openai-insecure-api-key.s3cret"]
    async with serving(token="s3cret") as server, client_of(server, subprotocols=names) as client:
        assert client.subprotocol == "realtime"
        await receive(client, "session.created")


async def test_one_session_too_many_is_told_why(serving, runtime):
    runtime.max_sessions = 1
    async with serving() as server, client_of(server), client_of(server) as second:
        error = (await receive(second, "error"))["error"]
        assert error["code"] == "session_limit_reached" and "1 sessions" in error["message"]
        assert await closed_with(second) == CloseCode.TRY_AGAIN_LATER


async def test_an_engine_that_opens_no_session_says_why(serving, runtime):
    runtime.rest = "it is given a rest"
    async with serving() as server, client_of(server) as client:
        error = (await receive(client, "error"))["error"]
        assert error["code"] == "engine_unavailable" and "a rest" in error["message"]
        assert await closed_with(client) == CloseCode.TRY_AGAIN_LATER


# ---- sessions


async def test_three_turns_with_the_official_client(server):
    openai = AsyncOpenAI(api_key="unused", base_url=server.url + "v1")
    async with openai, openai.realtime.connect(model="any") as connection:
        await connection.session.update(
            session={
                "type": "realtime",
                "instructions": "Be brief.",
                "output_modalities": ["audio"],
            }
        )
        texts, audio = [], b""
        await connection.input_audio_buffer.append(audio=AUDIO)
        async with asyncio.timeout(TIMEOUT_S):
            async for event in connection:
                if event.type == "error":
                    pytest.fail(event.error.message)
                if event.type == "conversation.item.input_audio_transcription.completed":
                    texts.append(event.transcript)
                if event.type == "response.output_audio_transcript.done":
                    texts.append(event.transcript)
                if event.type == "response.output_audio.delta":
                    audio += base64.b64decode(event.delta)
                if event.type == "response.done":
                    assert event.response.usage.total_tokens == 23
                    if len(texts) == 6:
                        break
                    await connection.input_audio_buffer.append(audio=AUDIO)
    question = "What is two plus two?"
    assert texts == [question, "Reply 1.", question, "Reply 2.", question, "Reply 3."]
    assert len(audio) == 3 * 48_000 and any(audio)


async def test_wrong_messages_do_not_end_the_session(server):
    async with client_of(server) as client:
        for message in ("{", b"\x00\x01", '{"type":"nonsense"}'):
            await client.send(message)
            await receive(client, "error")
        await send(client, "input_audio_buffer.append", audio=AUDIO)
        await receive(client, "response.done")


async def test_nothing_but_wrong_messages_ends_the_connection(serving):
    async with (
        serving(Limits(max_errors_in_a_row=3)) as server,
        client_of(server) as client,
    ):
        for _ in range(4):
            await client.send("{")
        for _ in range(4):
            await receive(client, "error")
        assert await closed_with(client) == CloseCode.TOO_MANY_ERRORS


async def test_a_message_beyond_the_limit_closes_its_connection_only(serving):
    async with (
        serving(Limits(max_message_bytes=100_000)) as server,
        client_of(server) as client,
        client_of(server) as other,
    ):
        await client.send("x" * 100_001)
        assert await closed_with(client) == 1009
        await send(other, "input_audio_buffer.append", audio=AUDIO)
        await receive(other, "response.done")


async def test_a_client_that_never_reads_is_let_go_and_others_are_not_affected(serving, runtime):
    limits = Limits(max_outbox_bytes=2_000_000)
    async with serving(limits) as server, client_of(server) as other:
        await receive(other, "session.created")
        reader, writer = await raw_client(server)
        slow = runtime.sessions[-1]
        for _ in range(60):  # about 64 kB of audio each
            await slow.send(slow_utterance())
        await until(lambda: slow.is_closed)
        await send(other, "input_audio_buffer.append", audio=AUDIO)
        await receive(other, "response.done")
        writer.close()


async def test_a_client_that_stops_reading_is_let_go_after_a_while(serving, runtime):
    async with serving(Limits(send_timeout_s=0.3)) as server:
        _reader, writer = await raw_client(server)
        slow = runtime.sessions[-1]
        for _ in range(100):
            await slow.send(slow_utterance())
        await until(lambda: slow.is_closed)
        writer.close()


async def test_a_lost_connection_closes_its_session(server, runtime):
    async with client_of(server) as client:
        await receive(client, "session.created")
        session = runtime.sessions[0]
        client.transport.abort()
        await until(lambda: session.is_closed)


async def test_a_session_that_fails_says_so_and_closes(server, runtime):
    async with client_of(server) as client:
        await receive(client, "session.created")
        runtime.sessions[0].emit(ErrorReported("internal_error", "it failed", fatal=True))
        assert (await receive(client, "error"))["error"]["code"] == "internal_error"
        assert await closed_with(client) == CloseCode.INTERNAL_ERROR


async def test_beta_clients_are_known_by_their_header(server):
    headers = {"OpenAI-Beta": "realtime=v1"}
    async with client_of(server, additional_headers=headers) as client:
        event = await receive(client, "session.created")
        assert event["session"]["input_audio_format"] == "pcm16"


async def test_a_header_sent_twice_is_read_and_leaks_no_session(server, runtime):
    headers = [("OpenAI-Beta", "assistants=v2"), ("OpenAI-Beta", "realtime=v1")]
    async with client_of(server, additional_headers=headers) as client:
        event = await receive(client, "session.created")
        assert event["session"]["input_audio_format"] == "pcm16"
    async with asyncio.timeout(TIMEOUT_S):
        while runtime.num_sessions:  # noqa: ASYNC110 (the fake runtime has no event to wait for)
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("request_line", ["GET //[ HTTP/1.1", "GET http://[bad HTTP/1.1"])
async def test_a_request_that_makes_no_sense_is_a_bad_request(server, request_line):
    address = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    for host in ("Host: 127.0.0.1\r\n", "Host: 127.0.0.1\r\nHost: two\r\n"):
        writer.write(f"{request_line}\r\n{host}\r\n".encode())
        async with asyncio.timeout(TIMEOUT_S):
            assert b" 400 " in await reader.readline()
        writer.close()
        await writer.wait_closed()
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        request_line = "GET / HTTP/1.1"
    writer.close()
    await writer.wait_closed()


# ---- the end


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST /v1/realtime HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}", b"405"),
        (b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", b"405"),
        (b"GET / HTTP/1.0\r\n\r\n", b"505"),
        (b"\x16\x03\x01 no request at all\n", b"400"),
        (b"", b""),
    ],
    ids=["post", "head", "http 1.0", "junk", "hang up"],
)
async def test_what_is_no_get_is_told_so_without_a_traceback(server, caplog, request_bytes, status):
    address = urlsplit(server.url)
    for cut in (len(request_bytes), 3):
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(request_bytes[:cut])
        await writer.drain()
        writer.write(request_bytes[cut:])
        writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), TIMEOUT_S)
        assert answer.split(b" ")[1:2] == ([status] if status else [])
        writer.close()
    assert not [record for record in caplog.records if record.exc_info]
    async with connect(server.url.replace("http", "ws") + "v1/realtime") as socket:
        assert json.loads(await socket.recv())["type"] == "session.created"


async def test_draining_lets_the_running_reply_end(serving, runtime):
    async with serving() as server, client_of(server) as client, client_of(server) as idle:
        await receive(client, "session.created")
        session = runtime.sessions[0]
        session.may_finish.clear()
        await send(client, "input_audio_buffer.append", audio=AUDIO)
        await receive(client, "response.created")
        url = socket_url(server)
        draining = asyncio.create_task(server.drain(TIMEOUT_S))
        assert await closed_with(idle) == CloseCode.GOING_AWAY
        with pytest.raises(OSError):
            await connect(url)
        assert not draining.done()
        session.may_finish.set()
        assert (await receive(client, "response.done"))["response"]["status"] == "completed"
        assert await closed_with(client) == CloseCode.GOING_AWAY
        await draining


async def test_draining_does_not_wait_for_ever(serving, runtime):
    async with serving() as server, client_of(server) as client:
        await receive(client, "session.created")
        runtime.sessions[0].may_finish.clear()
        await send(client, "input_audio_buffer.append", audio=AUDIO)
        await receive(client, "response.created")
        await asyncio.wait_for(server.drain(0.05), TIMEOUT_S)
        assert await closed_with(client) == CloseCode.GOING_AWAY


async def test_a_signal_drains_the_server(serving):
    async with serving() as server, client_of(server) as client:
        await receive(client, "session.created")
        running = asyncio.create_task(server.run_until_signal((signal.SIGUSR1,)))
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert await closed_with(client) == CloseCode.GOING_AWAY
        await asyncio.wait_for(running, TIMEOUT_S)


# ---- TLS


@pytest.fixture
def certificate(tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    kind = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", "req", *kind, *files], check=True, capture_output=True)
    return str(certificate), str(key)


async def test_the_page_can_be_served_over_tls(serving, certificate):
    certificate, key = certificate
    trusting = ssl.create_default_context(cafile=certificate)
    trusting.check_hostname = False
    async with serving(tls_certificate=certificate, tls_key=key) as server:
        assert server.url.startswith("https://")
        url = server.url.replace("https", "wss") + "v1/realtime"
        async with connect(url, ssl=trusting) as client:
            await receive(client, "session.created")


def test_a_certificate_that_cannot_be_used_is_named(runtime, assets, tmp_path):
    with pytest.raises(TlsUnusable, match=r"none\.pem"):
        Server(
            runtime,
            AppConfig(tls_certificate=str(tmp_path / "none.pem")),
            SessionDefaults(),
            assets=assets,
        )


# ---- helpers


def slow_utterance() -> Any:
    return AudioReceived(np.zeros(8_000, np.float32))


async def until(is_so: Any) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not is_so():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


async def raw_client(server: Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client that shakes hands and then reads nothing, into the smallest of buffers."""
    host, port = server.url.removeprefix("http://").rstrip("/").split(":")
    raw = sockets.socket()
    raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=raw, limit=4096)
    writer.write(
        f"GET /v1/realtime HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        "Sec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    await reader.readuntil(b"\r\n\r\n")
    return reader, writer
