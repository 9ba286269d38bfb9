"""Hide erased keys from reads, whatever the slots still hold.

An erasure belongs to a workspace and a dataset name (`connections.erasures`), a lookup to a job;
the views in memory map datasets to jobs, and every lookup comes from a view. All erasures are kept
in memory. They are reloaded after a notification, when the listener (re)connects, and before the
response of a forwarded `erase` is sent. Workspaces without erasures do not pay for any of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import psycopg
from psycopg_pool import PoolTimeout

from fennel_core.connections import erasures
from fennel_core.connections.erasures import ErasedKeys
from fennel_core.connections.postgres import Pool, listen
from fennel_core.query.program import ServedDataset
from fennel_core.query.view import Views
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.ids import DatasetName, JobId, WorkspaceId

log = logger(__name__)
_decode = msgspec.msgpack.Decoder(list[object]).decode
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class ErasureRule:
    """Erased keys of one dataset.

    `places` are the indexes of the erase keys in its key, None when they are the whole key in
    order.
    """

    places: tuple[int, ...] | None
    keys: frozenset[bytes]

    def hides(self, key: bytes) -> bool:
        if self.places is None:
            return key in self.keys
        values = _decode(key)
        return _encode([values[place] for place in self.places]) in self.keys


def erasure_rules(table: ServedDataset, erased: Sequence[ErasedKeys]) -> tuple[ErasureRule, ...]:
    """Return the erasures that apply to `table`; those by other columns than its keys do not."""
    names = table.view.schema.key_names
    found = []
    for each in erased:
        if set(each.columns) <= set(names):
            places = (
                None
                if each.columns == names
                else tuple(names.index(column) for column in each.columns)
            )
            found.append(ErasureRule(places, each.keys))
    return tuple(found)


class Erasures:
    """The erasures in memory. Use from one event loop."""

    def __init__(self, pool: Pool, views: Views) -> None:
        self._pool = pool
        self._views = views
        self._erased: dict[WorkspaceId, dict[DatasetName, tuple[ErasedKeys, ...]]] = {}
        self._rules: dict[JobId, tuple[ErasureRule, ...]] = {}

    async def reload(self) -> None:
        """Reload all erasures; raises the exceptions of the pool."""
        self._erased = await erasures.read(self._pool)
        self._rules = {}

    async def try_reload(self) -> None:
        """Reload them; if the database cannot be reached, keep the old ones."""
        try:
            await self.reload()
        except (psycopg.OperationalError, PoolTimeout) as lost:
            log.warning("erasures could not be reloaded", reason=str(lost))

    async def follow(self, dsn: str) -> None:
        """Reload after each notification, without end."""
        async for _ in listen(dsn, (erasures.CHANNEL,), name="fennel-query-erasures"):
            await self.try_reload()

    def hidden(self, job: JobId, keys: Sequence[bytes]) -> list[int]:
        """Return the indexes of erased keys among `keys`."""
        if not self._erased:
            return []
        found = self._rules.get(job)
        if found is None:
            found = self._rules[job] = self._of(job)
        return (
            [place for place, key in enumerate(keys) if any(rule.hides(key) for rule in found)]
            if found
            else []
        )

    def _of(self, job: JobId) -> tuple[ErasureRule, ...]:
        found: dict[DatasetName, tuple[ErasureRule, ...]] = {}
        for (workspace, _), view in self._views.known().items():
            of_workspace = self._erased.get(workspace, {})
            for name, table in view.tables.items():
                if table.view.served_by == job and name in of_workspace:
                    found[name] = erasure_rules(table, of_workspace[name])
        return tuple(rule for of_dataset in found.values() for rule in of_dataset)
