"""Which expectations apply to which topic: those of the versions that branches have.

Theory. A dataset's rows are on its topic, which branches and versions may share. So expectations
belong to a topic here, and equal ones of several branches are one. Definitions of a commit never
change, so each is decoded once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, cast

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Catalog
from fennel_core.connections import postgres
from fennel_core.connections.postgres import Pool
from fennel_core.expectations.errors import ExpectationInvalid
from fennel_core.expectations.expected import Expected, read_expectation
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.ids import DatasetName, TopicName, WorkspaceId
from fennel_core.wire.decode import decode_sync_request
from fennel_core.wire.entities import ExpectationSuite, ExpectedOf

log = logger(__name__)
VERSIONS: Final = """
    SELECT DISTINCT c.id, CASE WHEN c.id = ANY(%(known)s) THEN NULL ELSE coalesce(c.merged,
        c.request) END, CASE WHEN c.id = ANY(%(known)s) THEN NULL ELSE c.catalog END
    FROM branch b JOIN commit c ON c.id IN (b.target, b.serving)
    WHERE c.catalog IS NOT NULL AND coalesce(c.merged, c.request) IS NOT NULL
"""
DIGEST_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class TopicExpectations:
    """The expectations of the rows of one topic, by their digests."""

    workspace: WorkspaceId
    dataset: DatasetName
    expected: Mapping[str, Expected] = field(default_factory=dict)


Suites = Mapping[TopicName, TopicExpectations]


def digest_of(expected: Expected) -> str:
    """Return the digest of an expectation: equal ones are counted together."""
    named = f"{expected.kind}\0{expected.arguments}".encode()
    return blake2b(named, digest_size=DIGEST_BYTES).hexdigest()


def suites_of(
    catalog: Catalog, suites: Iterable[ExpectationSuite]
) -> dict[TopicName, TopicExpectations]:
    """Return the expectations of a version's datasets by topic.

    One that an earlier version of the platform accepted and this one cannot evaluate is logged.
    """
    views = {view.name: view for view in catalog.datasets if view.topic is not None}
    found: dict[TopicName, TopicExpectations] = {}
    for suite in suites:
        view = views.get(DatasetName(suite.entity))
        if suite.entity_kind is not ExpectedOf.DATASET or view is None or view.topic is None:
            continue
        dtypes = {each.name: each.dtype for each in view.schema.fields}
        read: dict[str, Expected] = {}
        for declared in suite.expectations:
            try:
                expected = read_expectation(declared, dtypes)
            except ExpectationInvalid as invalid:
                log.warning(
                    "an expectation cannot be evaluated",
                    workspace=catalog.workspace,
                    dataset=view.name,
                    expectation=declared.type,
                    reason=str(invalid),
                )
                continue
            read[digest_of(expected)] = expected
        known = found.get(view.topic)
        both = {**(known.expected if known else {}), **read}
        found[view.topic] = TopicExpectations(catalog.workspace, view.name, both)
    return found


def together(versions: Iterable[Suites]) -> dict[TopicName, TopicExpectations]:
    """Return the expectations of several versions, those of each topic together."""
    found: dict[TopicName, TopicExpectations] = {}
    for suites in versions:
        for topic, each in suites.items():
            known = found.get(topic)
            both = {**(known.expected if known else {}), **each.expected}
            found[topic] = TopicExpectations(each.workspace, each.dataset, both)
    return {topic: each for topic, each in found.items() if each.expected}


class CommittedSuites:
    """The expectations in a database. `read` raises SystemUnavailable if it cannot be used."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._versions: dict[str, Suites] = {}

    async def read(self) -> dict[TopicName, TopicExpectations]:
        """Return the expectations of all topics now."""
        async with postgres.connection_of(self._pool) as connection:
            known = {"known": list(self._versions)}
            rows = await (await connection.execute(VERSIONS, known)).fetchall()
        self._versions = {
            str(commit): self._versions[str(commit)]
            if catalog is None
            else suites_of(
                stored_names.loads(cast(bytes, catalog), Catalog),
                decode_sync_request(cast(bytes, request)).expectations,
            )
            for commit, request, catalog in rows
        }
        return together(self._versions.values())
