"""The streaming sources, which read external streams into datasets.

Run it with `python -m fennel_core.apps.sources`.
"""

import asyncio

from fennel_core.settings.model import Settings
from fennel_core.sources.host import run_sources


def main() -> None:
    """Run until SIGTERM."""
    asyncio.run(run_sources(Settings()))


if __name__ == "__main__":
    main()
