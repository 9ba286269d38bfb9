"""`python -m fennel_core.apps.history`: the history writer, dataset topics as Parquet on S3."""

import asyncio

from fennel_core.history.host import run_history
from fennel_core.settings.model import Settings


def main() -> None:
    """Run until SIGTERM."""
    asyncio.run(run_history(Settings()))


if __name__ == "__main__":
    main()
