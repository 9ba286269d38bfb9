"""Where the installation of a test's database keeps its objects and its local states."""

from __future__ import annotations

from pathlib import Path

import psycopg

from fennel_core.connections.installation import key_prefix
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import InstallationId


def _installation(settings: Settings) -> InstallationId:
    with psycopg.connect(settings.postgres_dsn.get_secret_value()) as connection:
        row = connection.execute("SELECT id FROM installation").fetchone()
    assert row is not None
    return InstallationId(row[0])


def own_prefix(settings: Settings) -> str:
    """Return the prefix of the installation's keys in the bucket."""
    return key_prefix(settings.s3_prefix, _installation(settings))


def own_state(settings: Settings) -> Path:
    """Return the folder of the installation's local states."""
    return settings.state_dir / _installation(settings)
