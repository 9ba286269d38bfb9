"""Errors of values, and the error that a client of our servers receives.

An `ApiError` carries three things: the HTTP status, a code and a text. The client raises every
response other than 200 with the body as its text, so the text must say what to do; programs compare
the code, which never changes once released. Any package may raise one; only the servers
(`telemetry/errors.py`) know how it is written on the wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from polars.exceptions import PanicException

from fennel_core.vocab.problems import Problem

ANY_FAILURE: Final = (Exception, PanicException)
"""What the outermost handler of a request catches, so that no request is left without a response.

A panic of a native library is not an `Exception`.
"""


class VocabError(Exception):
    """Base class of the errors about values. `code` is stable and never reused."""

    code: ClassVar[str] = "invalid-value"


class StoredNameUnknown(VocabError):
    """Stored data name a class, field or enum member that this version does not know.

    Another version wrote them. Run that version; delete the data of an unreleased version.
    """

    code = "stored-name-unknown"

    @classmethod
    def of(cls, kind: str, name: str) -> StoredNameUnknown:
        return cls(
            f"stored data contain {kind} `{name}`, which this version does not know: run the "
            "version that wrote them, or `make clean` to delete data of an unreleased version"
        )


class StoredValueMismatch(VocabError):
    """Stored bytes are malformed or hold a value of another class than the caller expects.

    The row is damaged or was written by something else; restore it from a backup.
    """

    code = "stored-value-mismatch"


class ApiError(Exception):
    """An error that a server returns to its client.

    `status` is the HTTP status (400 to 599), `code` is stable and in lower-case-with-dashes, `text`
    says what is wrong and what to do. `problems`: the findings of validation that the text lists.
    `retry_after_s`: seconds after which the same request may succeed; None if that is unknown.
    """

    retry_after_s: int | None = None

    def __init__(self, status: int, code: str, text: str, problems: Sequence[Problem] = ()) -> None:
        if not 400 <= status <= 599:
            raise ValueError(f"{status} is not the HTTP status of an error; use 400 to 599")
        if not code or code != code.lower() or not code.replace("-", "").isalnum():
            raise ValueError(f"`{code}` is not an error code: use lower-case words with dashes")
        super().__init__(text)
        self.status = status
        self.code = code
        self.text = text
        self.problems = tuple(problems)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.status}, {self.code!r}, {self.text!r})"


class ClassifiedApiError(ApiError):
    """An `ApiError` whose class fixes the status and the code; an instance adds the text.

    Each package derives one root from it and a class per failure from that root.
    """

    STATUS: ClassVar[int] = 500
    CODE: ClassVar[str] = "internal"

    def __init__(self, text: str, problems: Sequence[Problem] = ()) -> None:
        super().__init__(self.STATUS, self.CODE, text, problems)
