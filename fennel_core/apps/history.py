"""The history writer, which copies dataset topics to Parquet on S3.

Run it with `python -m fennel_core.apps.history`.
"""

import asyncio

from fennel_core.history.host import run_history
from fennel_core.settings.model import Settings


def main() -> None:
    """Run until SIGTERM."""
    asyncio.run(run_history(Settings()))


if __name__ == "__main__":
    main()
