"""The platform's installed packages as one short hash, which markers carry."""

from __future__ import annotations

import hashlib
import os
from importlib.metadata import distributions
from typing import Final

ENVIRONMENT_HASH: Final = "FENNEL_ENVIRONMENT_HASH"
"""The driver computes the hash and passes it to its slots in this environment variable."""


def environment_hash() -> str:
    """Return 16 hex digits over the installed packages and their versions."""
    known = os.environ.get(ENVIRONMENT_HASH)
    if known:
        return known
    pins = sorted(f"{d.metadata['Name']}=={d.version}" for d in distributions())
    return hashlib.sha256("\n".join(pins).encode()).hexdigest()[:16]
