"""Migrate the platform's database to this version's schema: `python -m fennel_core.apps.migrate`.

Run it before any server starts.
"""

from __future__ import annotations

import sys
import time
from typing import Final

import psycopg

from fennel_core.connections import migrate
from fennel_core.connections.postgres import connect
from fennel_core.settings.model import Settings

WAIT_SECONDS: Final = 30.0
"""How long to wait for a database that does not respond: it may be starting."""


def main() -> int:
    """Apply and print the missing migrations.

    Returns 1 if files and database disagree or the database cannot be reached.
    """
    dsn = Settings().postgres_dsn.get_secret_value()
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            with connect(dsn, name="fennel-migrate") as connection:
                for migration in migrate.apply(connection, migrate.read()):
                    print(f"applied {migration.number:04d}_{migration.name}")
            return 0
        except migrate.MigrationMismatch as wrong:
            print(f"cannot migrate the database: {wrong}", file=sys.stderr)
            return 1
        except psycopg.OperationalError as unreachable:
            if time.monotonic() >= deadline:
                print(f"cannot reach the database: {unreachable}", file=sys.stderr)
                return 1
            time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
