"""The page's files, read once, with the headers that keep it to itself."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from app.errors import ForespeakError

WEB_FOLDER = Path(__file__).resolve().parent.parent / "web"
CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


class PageMissing(ForespeakError):
    def __init__(self, folder: Path) -> None:
        super().__init__(f"no index.html in {folder}")


@dataclass(frozen=True, slots=True)
class Asset:
    content: bytes
    content_type: str
    etag: str


class WebAssets:
    """`/` and every file beside it. Raises PageMissing if there is no page."""

    def __init__(self, folder: Path = WEB_FOLDER) -> None:
        self._assets = {
            f"/{path.name}": _read(path)
            for path in sorted(folder.glob("*"))
            if path.suffix in CONTENT_TYPES
        }
        if "/index.html" not in self._assets:
            raise PageMissing(folder)
        self._assets["/"] = self._assets["/index.html"]

    def find(self, path: str) -> Asset | None:
        return self._assets.get(path)


def _read(path: Path) -> Asset:
    content = path.read_bytes()
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return Asset(content, CONTENT_TYPES[path.suffix], etag)


def security_headers(host: str) -> dict[str, str]:
    """For every answer. `host` is the request's Host header, used only if it looks like one."""
    sockets = ""
    if re.fullmatch(r"[\w.\-\[\]:]+", host):  # older Safari does not count sockets as 'self'
        sockets = f" ws://{host} wss://{host}"
    return {
        "Content-Security-Policy": (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
            f"worker-src 'self'; connect-src 'self'{sockets}; base-uri 'none'; "
            "form-action 'none'; frame-ancestors 'none'"
        ),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    }
