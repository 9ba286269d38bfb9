"""The routes of the definition server, one module per group."""

from typing import Final

API: Final = "/api/v1"
