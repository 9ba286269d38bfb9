"""The columns of a change data feed of Delta Lake, and what a row of it is.

Delta reserves these names, so no table with a feed has columns of its own of these names.
"""

from __future__ import annotations

from typing import Final

CHANGE_TYPE: Final = "_change_type"
COMMIT_VERSION: Final = "_commit_version"
COMMIT_TIMESTAMP: Final = "_commit_timestamp"
INSERT: Final = "insert"
PREIMAGE: Final = "update_preimage"
POSTIMAGE: Final = "update_postimage"
DELETE: Final = "delete"
READ: Final = "read"
"""Ours: a row of the first full read."""
