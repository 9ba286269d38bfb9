"""The one error tree of this boundary. A code never changes its meaning; the text says what was wrong and what to do."""

from __future__ import annotations


class WireError(ValueError):
    """Bytes or JSON from a client that cannot be understood.

    `code` is stable and machine-readable; `str(error)` is for the person who sent the request.
    """

    code = "wire"


class MalformedMessage(WireError):
    """Not a protobuf message of the expected type."""

    code = "wire-malformed"


class UnsupportedValue(WireError):
    """A well-formed message with a part that is missing, unknown or out of range."""

    code = "wire-unsupported"
