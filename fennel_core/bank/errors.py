"""Errors of the bank. Failures of Postgres are `connections.errors`."""

from __future__ import annotations

from typing import ClassVar


class BankError(Exception):
    """Base class of the bank's errors. `code` is stable and never reused."""

    code: ClassVar[str] = "bank-failed"


class AssetAlreadyAlive(BankError):
    """Another asset with the same workspace, kind and identity is alive.

    The caller planned without holding the workspace's lock. Take the lock and plan again.
    """

    code = "asset-already-alive"
