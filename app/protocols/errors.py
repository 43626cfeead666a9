"""What a client can get wrong on the wire, as one typed error that every adapter answers with."""

from __future__ import annotations


class ProtocolError(Exception):
    """`code` names the kind for programs, the message the offending value, `param` the field."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param
