"""The history writer, which copies dataset topics to Parquet on S3, and beside it the evaluation of
expectations, which reads the same topics.

Run it with `python -m fennel_core.apps.history`.
"""

import asyncio

from fennel_core.connections.postgres import Pool
from fennel_core.data_quality.evaluator import ExpectationEvaluator
from fennel_core.history.host import run_history
from fennel_core.history.kafka import TopicReader
from fennel_core.settings.model import Settings


async def evaluate_expectations(settings: Settings, pool: Pool) -> None:
    """Evaluate expectations forever."""
    await ExpectationEvaluator(pool, TopicReader(settings)).run()


def main() -> None:
    """Run until SIGTERM."""
    asyncio.run(run_history(Settings(), evaluate_expectations))


if __name__ == "__main__":
    main()
