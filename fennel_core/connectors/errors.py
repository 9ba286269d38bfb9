"""Errors of stored connectors."""

from __future__ import annotations

from typing import ClassVar


class ConnectorsError(Exception):
    """Base class of these errors. `code` is stable and never reused."""

    code: ClassVar[str] = "connector-invalid"


class PropertiesInvalid(ConnectorsError):
    """The properties make no connector; the text has one sentence per reason."""
