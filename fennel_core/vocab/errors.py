"""The error a caller of our servers sees, as a value.

Theory. The client raises whatever is not status 200 with the body as its text, and people act on
that text; programs act on the code, which never changes once released. Any room may raise one; only
the servers (`telemetry/errors.py`) know how it is written on the wire.
"""

from __future__ import annotations


class ApiError(Exception):
    """`status` is the HTTP status, `code` is stable and lower-case-with-dashes, `text` says what
    was wrong and what to do.
    """

    def __init__(self, status: int, code: str, text: str) -> None:
        if not 400 <= status <= 599:
            raise ValueError(f"{status} is not the status of an error")
        if not code or code != code.lower() or not code.replace("-", "").isalnum():
            raise ValueError(f"`{code}` is not an error code: lower-case words joined by dashes")
        super().__init__(text)
        self.status = status
        self.code = code
        self.text = text

    def __repr__(self) -> str:
        return f"ApiError({self.status}, {self.code!r}, {self.text!r})"
