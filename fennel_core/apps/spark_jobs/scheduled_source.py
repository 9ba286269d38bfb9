"""The Spark application of one run of a source: `spark-submit scheduled_source.py TOPIC RUN`.

It ends with status 1 if the source could not be read; the schedule tries it again.
"""

from __future__ import annotations

import asyncio
import sys

from fennel_core.connections.spark import keep_submitted_master
from fennel_core.settings.model import Settings
from fennel_core.sources.table_job import RunEnd, run_table_source
from fennel_core.telemetry import logs
from fennel_core.vocab.ids import TopicName


def main() -> int:
    """Read the source that the first argument names, as the run that the second names."""
    settings = Settings()
    logs.configure("scheduled-source", settings.log_level, hidden=logs.secrets_of(settings))
    keep_submitted_master()
    end = asyncio.run(run_table_source(settings, TopicName(sys.argv[1]), sys.argv[2]))
    return 1 if end is RunEnd.FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
