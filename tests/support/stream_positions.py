"""The positions of a stream in a world without Kafka."""

from __future__ import annotations

from fennel_core.sources.positions import SourcePosition, decode
from tests.support.source_world import POSITIONS, SourceWorld


def positions_of(sources: SourceWorld) -> dict[int, SourcePosition]:
    """Return the positions by partition, as a process that starts reads them."""
    return {
        int(record.key): decode(record.value)
        for (topic, _), records in sources.world.log.items()
        if topic == POSITIONS
        for record in records
        if record.key is not None
    }
