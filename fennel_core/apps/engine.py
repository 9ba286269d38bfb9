"""One engine with its slots as long-lived Spark tasks: `python -m fennel_core.apps.engine`."""

import asyncio
import os

from fennel_core.engine.host import run_engine
from fennel_core.settings.model import Settings
from fennel_core.vocab.ids import EngineId


def main() -> None:
    """Run until SIGTERM. `FENNEL_ENGINE` names the engine when there are several."""
    asyncio.run(run_engine(Settings(), EngineId(os.environ.get("FENNEL_ENGINE", "engine"))))


if __name__ == "__main__":
    main()
