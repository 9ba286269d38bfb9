"""The streaming sources, which read external streams into datasets, and beside them the sinks,
which write datasets to external systems.

Run it with `python -m fennel_core.apps.sources`.
"""

import asyncio

from fennel_core.settings.model import Settings
from fennel_core.sinks.host import SinkHost
from fennel_core.sources.host import run_sources


def main() -> None:
    """Run until SIGTERM."""
    asyncio.run(run_sources(Settings(), SinkHost))


if __name__ == "__main__":
    main()
