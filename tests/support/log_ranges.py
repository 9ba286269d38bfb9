"""Read a range of a log as a list, for assertions on small logs."""

from fennel_core.engine.broker import Broker, Record
from fennel_core.vocab.ids import Offset, TopicPartition


async def read_range(
    broker: Broker, source: TopicPartition, first: Offset, stop: Offset | None = None
) -> list[Record]:
    """Return the committed records with first <= offset < stop; None: the current end."""
    reader = await broker.range_reader()
    try:
        return [record async for portion in reader.read(source, first, stop) for record in portion]
    finally:
        await reader.close()
