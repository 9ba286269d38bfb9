"""Put stored connectors in the place of their names: pure functions.

Definitions and catalogs keep only the name, so a connector may change without a commit; the
process that reaches a system resolves the name first. The identity of a stream or sink has the
connector's name and not its address (`blueprints.streams`), so a change of credentials is not
another stream.

An S3 connector has no address: one without keys is the stored one of its name, if there is one, and
else means the platform's keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote
from typing import Any, Final, TypeVar, cast

from fennel_core.blueprints.spec import Catalog
from fennel_core.wire import connectors as c

T = TypeVar("T", bound=c.Table)
Use = TypeVar("Use", c.Source, c.Sink)
Access = c.Kafka | c.Postgres | c.MySQL | c.S3 | c.Http
"""The kinds of connectors that are stored."""
KINDS: Final[Mapping[type[Access], str]] = {
    c.Kafka: "kafka",
    c.Postgres: "postgres",
    c.MySQL: "mysql",
    c.S3: "s3",
    c.Http: "http",
}
TITLES: Final[Mapping[str, str]] = {
    "kafka": "Kafka",
    "postgres": "Postgres",
    "mysql": "MySQL",
    "s3": "S3",
    "http": "HTTP",
}
SECRETS: Final[Mapping[str, str]] = {
    "kafka": "sasl_plain_password",
    "postgres": "password",
    "mysql": "password",
    "s3": "aws_secret_access_key",
    "http": "ca_cert",
}
"""The property of each kind that changes most often."""
Stored = Mapping[str, Access]
"""The stored connectors of one workspace, by name."""


def kind_of(database: c.Database) -> str | None:
    """Return the kind of a connector, None for one that is not stored."""
    if isinstance(database, c.NamedReference):
        return database.kind
    return KINDS.get(cast(Any, type(database)))


def address_of(database: Access) -> str:
    """Return what a connector leads to, without credentials; empty for S3, which is one place."""
    match database:
        case c.Kafka():
            return database.bootstrap_servers
        case c.Postgres() | c.MySQL():
            return f"{database.host}:{database.port}/{database.database}"
        case c.Http(host=c.PlainSecret(value)):
            return value.rstrip("/")
        case _:
            return ""


def reference_of(table: c.Table) -> c.NamedReference | None:
    """Return the stored connector that a table names, or would use if it was stored."""
    match table.db:
        case c.NamedReference():
            return table.db
        case c.S3(name, None, c.Login(None, None)):
            return c.NamedReference(name, "s3")
        case _:
            return None


def stored_references(uses: Iterable[c.Source | c.Sink], stored: Stored) -> set[c.NamedReference]:
    """Return the stored connectors that sources and sinks get their addresses from."""
    found = {reference_of(use.table) for use in uses}
    return {each for each in found if each is not None and is_stored(each, stored)}


def is_stored(reference: c.NamedReference, stored: Stored) -> bool:
    """Return whether a connector of this name is stored, and is of this kind."""
    found = stored.get(reference.name)
    return found is not None and kind_of(found) == reference.kind


def resolved_table(table: T, stored: Stored) -> T:
    """Return a table with its stored connector; unchanged if there is none of its kind."""
    reference = reference_of(table)
    if reference is None or not is_stored(reference, stored):
        return table
    return cast(T, replace(cast(Any, table), db=stored[reference.name]))


def resolved_uses(uses: Iterable[Use], stored: Stored) -> tuple[Use, ...]:
    """Return sources or sinks with their stored connectors."""
    return tuple(replace(use, table=resolved_table(use.table, stored)) for use in uses)


def resolved_catalog(catalog: Catalog, stored: Stored) -> Catalog:
    """Return a version with its stored connectors."""
    if not stored:
        return catalog
    sources = [
        replace(each, source=replace(each.source, table=resolved_table(each.source.table, stored)))
        for each in catalog.sources
    ]
    sinks = [
        replace(each, sink=replace(each.sink, table=resolved_table(each.sink.table, stored)))
        for each in catalog.sinks
    ]
    return replace(catalog, sources=tuple(sources), sinks=tuple(sinks))


def remedy(table: c.Table, stored: Stored) -> str | None:
    """Return what to do if the credentials of a table's connector have changed.

    None for one that is only named and not stored any more: what is broken says so itself.
    """
    name = table.db.name
    if isinstance(table.db, c.NamedReference):
        return None
    found = stored.get(name)
    if found is None or found != table.db:
        return f"if its credentials have changed: commit connector `{name}` with the new ones"
    secret = SECRETS[kind_of(found) or ""]
    return (
        f"if its credentials have changed: fennel-core connector rotate {quote(name)} --secret "
        f"{secret}=file:PATH"
    )


@dataclass(frozen=True, slots=True)
class ConnectorUsers:
    """What a workspace reads and writes: by its branches' versions, and by commits under way.

    `under_way`: their sources and sinks, which no version may have yet.
    """

    catalogs: Mapping[str, Catalog]
    under_way: Sequence[c.Source | c.Sink] = ()

    def of(self, name: str, kind: str) -> Catalog | None:
        """Return all bindings with a stored connector as one catalog; None if there are none."""
        found: Catalog | None = None
        for catalog in self.catalogs.values():
            sources = [each for each in catalog.sources if _names(each.source.table, name, kind)]
            sinks = [each for each in catalog.sinks if _names(each.sink.table, name, kind)]
            if not (sources or sinks):
                continue
            known = found or replace(catalog, sources=(), sinks=())
            found = replace(
                known,
                sources=tuple(dict.fromkeys((*known.sources, *sources))),
                sinks=tuple(dict.fromkeys((*known.sinks, *sinks))),
            )
        return found

    def titles(self, name: str, kind: str) -> list[str]:
        """Return what reads or writes with a stored connector, for people."""
        return self._titles(lambda table: _names(table, name, kind))

    def others(self, database: Access) -> list[str]:
        """Return the uses of a connector in code that has the name, and is another one."""
        return self._titles(lambda table: is_other(table, database))

    def _titles(self, wanted: Callable[[c.Table], bool]) -> list[str]:
        uses: list[tuple[str, c.Source | c.Sink]] = [
            ("a commit under way", use) for use in self.under_way
        ]
        for branch, catalog in self.catalogs.items():
            where = f"branch `{branch}`"
            uses += [(where, each.source) for each in catalog.sources]
            uses += [(where, each.sink) for each in catalog.sinks]
        return sorted(
            {
                f"the {'source' if isinstance(use, c.Source) else 'sink'} of dataset "
                f"`{use.dataset}` in {where}"
                for where, use in uses
                if wanted(use.table)
            }
        )


def is_other(table: c.Table, database: Access) -> bool:
    """Return whether a table has a connector in code with the name of `database` that is another.

    The rows of webhooks are sent, so their names are those of no system.
    """
    own = table.db
    if own.name != database.name or isinstance(own, c.NamedReference | c.Webhook):
        return False
    return not isinstance(own, Access) or (
        (kind_of(own), address_of(own)) != (kind_of(database), address_of(database))
    )


def _names(table: c.Table, name: str, kind: str) -> bool:
    return reference_of(table) == c.NamedReference(name, kind)
