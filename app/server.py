"""Sockets: the page and `/healthz` over plain GET, sessions over WebSocket at `/v1/realtime`.

The only importer of websockets. What a connection does is in app/connection.py, who is let in in
app/admission.py.
"""

from __future__ import annotations

import asyncio
import http
import json
import logging
import re
import signal
import ssl
import sys
from collections.abc import MutableMapping, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

import structlog
from websockets.asyncio.server import Server as WebSocketServer
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers, MultipleValuesError
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from app import messages as m
from app.admission import Admission, Refused
from app.config import AppConfig
from app.connection import CloseCode, Closing, Connection, Limits, LiveSession
from app.errors import ForespeakError, SessionLimitReached
from app.protocols.realtime import RealtimeAdapter, SessionDefaults
from app.web_assets import WebAssets, security_headers
from llm_engine.errors import EngineError

logger = structlog.get_logger()

REALTIME_PATH = "/v1/realtime"
REALTIME_SUBPROTOCOL = Subprotocol("realtime")
BETA_SUBPROTOCOL = "openai-beta.realtime-v1"
BETA_HEADER = "realtime=v1"
DRAIN_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 2.0
MAX_REQUEST_LINE_BYTES = 8192
PING_INTERVAL_S = 20.0
PING_TIMEOUT_S = 120.0  # pongs queue behind audio that is read no faster than it is heard


class _HttpConnection(ServerConnection):
    """Answers requests that are no GET of HTTP/1.1, on which the library would only hang up."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._request_line: bytes | None = b""  # None: read and found good

    def data_received(self, data: bytes) -> None:
        if self._request_line is not None:
            self._request_line += data[:MAX_REQUEST_LINE_BYTES]
            line, newline, _ = self._request_line.partition(b"\n")
            if newline:
                wrong = _wrong_request(line.rstrip(b"\r"))
                if wrong is not None:
                    self.transport.write(wrong)
                    self.transport.close()
                    return
                self._request_line = None
            elif len(line) > MAX_REQUEST_LINE_BYTES:
                self._request_line = None  # the library's own limit answers it
        super().data_received(data)


def _wrong_request(line: bytes) -> bytes | None:
    """The whole response to a request line that cannot be served; None if it can."""
    parts = re.fullmatch(rb"([A-Z]+) (\S+) HTTP/(\d)\.(\d)", line)
    extra, status = "", 400
    reason = "the request line is not HTTP"
    if parts is not None:
        if parts[1] != b"GET":
            status, extra = 405, "Allow: GET\r\n"
            reason = (
                f"{parts[1].decode()} is not served: use GET, or a WebSocket at {REALTIME_PATH}"
            )
        elif (parts[3], parts[4]) != (b"1", b"1"):
            status, reason = 505, "HTTP/1.1 is needed"
        else:
            return None
    body = "" if line.startswith(b"HEAD ") else reason + "\n"
    head = f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\n{extra}"
    head += f"Content-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
    return (head + "Connection: close\r\n\r\n" + body).encode()


class _HandshakeLog(logging.LoggerAdapter[logging.Logger]):
    """A client that says nonsense or hangs up is one line of the log, not a traceback."""

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        if msg == "opening handshake failed":
            kwargs["exc_info"] = False
            msg = f"{msg}: {type(sys.exc_info()[1]).__name__}"
        return msg, kwargs


class NamedSession(LiveSession, Protocol):
    name: str


class SessionSource(Protocol):
    """What app/live.py's runtime offers."""

    @property
    def num_sessions(self) -> int: ...
    def open_session(self, change: m.SettingsChanged | None = None) -> NamedSession: ...


class TlsUnusable(ForespeakError):
    def __init__(self, certificate: str, reason: str) -> None:
        super().__init__(f"cannot use the TLS certificate {certificate!r}: {reason}")


class Server:
    """Listens as configured; at once ready. Raises TokenRequired, TlsUnusable or PageMissing."""

    def __init__(
        self,
        source: SessionSource,
        config: AppConfig,
        defaults: SessionDefaults,
        *,
        assets: WebAssets | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._source = source
        self._config = config
        self._defaults = defaults
        self._assets = assets or WebAssets()
        self._limits = limits or Limits()
        self._admission = Admission(config.token, config.allowed_origins)
        self._admission.check_address(config.host)
        self._tls = _tls_context(config)
        self._connections: set[Connection] = set()
        self._listening: WebSocketServer | None = None

    async def start(self) -> None:
        """Begin to accept clients. Raises OSError if the address cannot be had."""
        self._listening = await serve(
            self._serve_client,
            self._config.host,
            self._config.port,
            ssl=self._tls,
            process_request=self._answer_request,
            select_subprotocol=_select_subprotocol,
            compression=None,  # audio does not shrink, and each context costs memory
            max_size=self._limits.max_message_bytes,
            ping_interval=PING_INTERVAL_S,
            ping_timeout=PING_TIMEOUT_S,
            close_timeout=CLOSE_TIMEOUT_S,
            server_header="forespeak",
            create_connection=_HttpConnection,
            logger=_HandshakeLog(logging.getLogger("websockets.server")),
        )

    @property
    def url(self) -> str:
        """Where the page is."""
        assert self._listening is not None, "not started"
        host, port = next(iter(self._listening.sockets)).getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        return f"{'https' if self._tls else 'http'}://{shown}:{port}/"

    async def drain(self, timeout_s: float = DRAIN_TIMEOUT_S) -> None:
        """Accept no more clients, let running replies end (for `timeout_s`), close with 1001."""
        if self._listening is None:
            return
        self._listening.close(close_connections=False)
        for connection in self._connections:
            connection.leave()
        try:
            async with asyncio.timeout(timeout_s):
                await self._listening.wait_closed()
        except TimeoutError:
            logger.warning("drain timed out", num_connections=len(self._connections))
            for connection in self._connections:
                connection.leave(at_once=True)
        await self._listening.wait_closed()
        self._listening = None

    async def run_until_signal(
        self, signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGINT)
    ) -> None:
        """Serve until one of `signals` comes, then drain. A second one acts as it always does."""
        loop = asyncio.get_running_loop()
        stopped = asyncio.Event()
        for number in signals:
            loop.add_signal_handler(number, stopped.set)
        await stopped.wait()
        for number in signals:
            loop.remove_signal_handler(number)
        await self.drain()

    # ---- plain requests

    def _answer_request(self, socket: ServerConnection, request: Request) -> Response | None:
        """Answer a plain GET, or let a WebSocket in by returning None."""
        try:
            return self._answer(request)
        except (MultipleValuesError, ValueError) as wrong:  # two Host headers, "http://[bad"
            return _response(400, "", f"bad request: {type(wrong).__name__}\n".encode())

    def _answer(self, request: Request) -> Response | None:
        host = request.headers.get("Host", "")
        path = urlsplit(request.path).path
        if path == REALTIME_PATH:
            try:
                names = _subprotocols(request)
                self._admission.check_websocket(request.path, request.headers, names)
            except Refused as refused:
                logger.info("connection refused", status=refused.status)
                return _response(refused.status, host, f"{refused}\n".encode())
            return None
        if path == "/healthz":
            state = {"status": "ok", "sessions": self._source.num_sessions}
            return _response(200, host, json.dumps(state).encode(), "application/json")
        asset = self._assets.find(path)
        if asset is None:
            return _response(404, host, b"not found\n")
        cached = {"ETag": asset.etag, "Cache-Control": "no-cache"}
        if request.headers.get("If-None-Match") == asset.etag:
            return _response(304, host, b"", asset.content_type, cached)
        return _response(200, host, asset.content, asset.content_type, cached)

    # ---- sessions

    async def _serve_client(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        is_beta = _speaks_beta(socket.request)  # before there is a session to be closed
        try:
            session = self._source.open_session()
        except (SessionLimitReached, EngineError) as refusal:
            logger.info("session refused", code=refusal.code)
            await _turn_away(socket, refusal)
            return
        log = logger.bind(session=session.name)
        adapter = RealtimeAdapter(session.name, self._defaults, is_beta=is_beta)
        connection = Connection(socket, session, adapter, self._limits)
        self._connections.add(connection)
        log.info("session opened")
        try:
            closing = await connection.run()
            await _close(socket, closing)
            log.info("session closed", code=int(closing.code), reason=closing.reason)
        except ConnectionClosed as closed:
            code = closed.rcvd.code if closed.rcvd else None
            log.info("connection lost", code=code)
        finally:
            self._connections.discard(connection)
            await session.close()


async def _close(socket: ServerConnection, closing: Closing) -> None:
    """Close with a code; a client that does not even read that is cut off."""
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await socket.close(closing.code, closing.reason)
    except TimeoutError:
        socket.transport.abort()


async def _turn_away(socket: ServerConnection, refusal: SessionLimitReached | EngineError) -> None:
    """Browsers cannot read a refused handshake's status, so the reason goes over the socket."""
    detail = {"type": "server_error", "code": refusal.code, "message": str(refusal)}
    closing = Closing(CloseCode.TRY_AGAIN_LATER, str(refusal))
    try:
        event = {"type": "error", "event_id": "event_0", "error": detail}
        await socket.send(json.dumps(event))
        await _close(socket, closing)
    except ConnectionClosed:
        pass


def _tls_context(config: AppConfig) -> ssl.SSLContext | None:
    if config.tls_certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(config.tls_certificate, config.tls_key)
    except (OSError, ssl.SSLError) as cause:
        raise TlsUnusable(config.tls_certificate, str(cause)) from cause
    return context


def _subprotocols(request: Request) -> list[str]:
    names: list[str] = []
    for value in request.headers.get_all("Sec-WebSocket-Protocol"):
        names += [name.strip() for name in value.split(",")]
    return names


def _select_subprotocol(
    socket: ServerConnection, offered: Sequence[Subprotocol]
) -> Subprotocol | None:
    return REALTIME_SUBPROTOCOL if REALTIME_SUBPROTOCOL in offered else None


def _speaks_beta(request: Request) -> bool:
    if BETA_SUBPROTOCOL in _subprotocols(request):
        return True
    return any(BETA_HEADER in value for value in request.headers.get_all("OpenAI-Beta"))


def _response(
    status: int,
    host: str,
    content: bytes,
    content_type: str = "text/plain; charset=utf-8",
    extra: dict[str, str] | None = None,
) -> Response:
    headers = Headers(
        {
            "Content-Type": content_type,
            "Content-Length": str(len(content)),
            "Connection": "close",
        }
        | security_headers(host)
        | (extra or {})
    )
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(status, http.HTTPStatus(status).phrase, headers, content)
