"""The query server: the API gateway, run as `python -m fennel_core.apps.query`.

This process serves nothing and imports little. It is the parent of `FENNEL_QUERY_WORKERS` processes
on one port, and of `FENNEL_QUERY_HELPERS` processes that serve large requests for them.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final

from fennel_core.apps.workers import bound_socket, run_workers
from fennel_core.query.erasure_counters import new_memory
from fennel_core.settings.model import Settings
from fennel_core.telemetry import logs

PROCESS: Final = "query"


def main() -> None:
    settings = Settings()
    logs.configure(PROCESS, settings.log_level, hidden=logs.secrets_of(settings))
    run = run_workers(
        "fennel_core.apps.query_worker",
        settings.query_workers,
        bound_socket(settings.host, settings.query_port),
        grace_s=settings.shutdown_grace_s,
        memory=new_memory(),
        helpers=settings.query_helpers,
    )
    sys.exit(asyncio.run(run))


if __name__ == "__main__":
    main()
