"""Who may connect: addresses to bind to, tokens, origins. Pure checks on what a request says."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from app.errors import ForespeakError

SUBPROTOCOL_TOKEN = "openai-insecure-api-key."  # how browsers pass a token to Realtime servers


class TokenRequired(ForespeakError):
    """An address that others can reach was configured without a token."""

    def __init__(self, host: str) -> None:
        super().__init__(f"will not listen on {host!r} without a token: set FORESPEAK_TOKEN")
        self.host = host


class Refused(ForespeakError):
    """A WebSocket that is not let in; `status` is the HTTP status of the answer."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class Admission:
    """The rules of one server. `allowed_origins` are whole origins: `https://example.com`."""

    token: str | None = None
    allowed_origins: tuple[str, ...] = ()

    def check_address(self, host: str) -> None:
        """Raises TokenRequired unless `host` is this machine alone or a token is set."""
        if not self.token and not is_loopback(host):
            raise TokenRequired(host)

    def check_websocket(
        self, path: str, headers: Mapping[str, str], subprotocols: Iterable[str]
    ) -> None:
        """Raises Refused: 403 for a foreign origin, 401 for a missing or wrong token."""
        self._check_origin(headers)
        if not self.token:
            return
        given = _tokens(path, headers, subprotocols)
        wanted = self.token.encode()
        if not any(
            hmac.compare_digest(token.encode(errors="surrogateescape"), wanted) for token in given
        ):
            raise Refused(401, "missing or wrong token")

    def _check_origin(self, headers: Mapping[str, str]) -> None:
        """Browsers name the page's origin; other clients name none, and need the token alone.

        Without a token the page must have been reached by a loopback name: any other name could be
        a foreign page's, made to resolve to this machine (DNS rebinding).
        """
        origin, host = headers.get("Origin"), headers.get("Host", "")
        if origin is None or origin in self.allowed_origins:
            return
        try:
            is_same_host = urlsplit(origin).netloc.lower() == host.lower() != ""
            hostname = urlsplit(f"//{host}").hostname or ""
        except ValueError:  # no URL at all
            is_same_host, hostname = False, ""
        if not is_same_host or not (self.token or is_loopback(hostname)):
            raise Refused(403, f"origin {origin!r:.200} is not allowed")


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _tokens(path: str, headers: Mapping[str, str], subprotocols: Iterable[str]) -> list[str]:
    """All tokens of a request: Authorization header, `?token=`, subprotocol."""
    scheme, _, bearer = headers.get("Authorization", "").partition(" ")
    tokens = [bearer.strip()] if scheme.lower() == "bearer" else []
    tokens += parse_qs(urlsplit(path).query).get("token", [])
    tokens += [
        name.removeprefix(SUBPROTOCOL_TOKEN)
        for name in subprotocols
        if name.startswith(SUBPROTOCOL_TOKEN)
    ]
    return tokens
