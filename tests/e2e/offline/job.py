"""The program of a run, as `apps/spark_jobs/offline_query.py`, over the plan of `world`.

The arguments are the id of the request, and the file that `world.write` returned.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from fennel_core.offline import request_run
from fennel_core.settings.model import Settings
from tests.e2e.offline.world import FixedPlan

request_run.plan_offline_read = FixedPlan(Path(sys.argv[2])).plan  # type: ignore[assignment]  # the same call
print(asyncio.run(request_run.run_offline_query(Settings(), sys.argv[1])))
