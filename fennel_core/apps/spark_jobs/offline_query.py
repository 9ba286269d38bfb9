"""The Spark application of one request for training data: `spark-submit offline_query.py ID`.

It ends with status 0 if nothing is left to do, 2 if the request has failed, and 1 if another run is
to be started.
"""

from __future__ import annotations

import asyncio
import sys

from fennel_core.connections.spark import keep_submitted_master
from fennel_core.offline.request_run import RunOutcome, run_offline_query
from fennel_core.settings.model import Settings
from fennel_core.telemetry import logs

STATUS = {RunOutcome.FAILED: 2, RunOutcome.REPEAT: 1}


def main() -> int:
    """Run the request that the first argument names."""
    settings = Settings()
    logs.configure("offline-query", settings.log_level, hidden=logs.secrets_of(settings))
    keep_submitted_master()
    outcome = asyncio.run(run_offline_query(settings, sys.argv[1]))
    return STATUS.get(outcome, 0)


if __name__ == "__main__":
    sys.exit(main())
