"""Check the connectors that a commit names: that they are stored, and mean what the code means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from shlex import quote

from fennel_core.connectors.references import (
    TITLES,
    Stored,
    address_of,
    is_other,
    kind_of,
)
from fennel_core.vocab.problems import Problem
from fennel_core.wire.connectors import NamedReference, Sink, Source

LISTED = 10
"""Datasets that a text names."""


def connector_problems(uses: Sequence[Source | Sink], stored: Stored) -> Iterator[Problem]:
    """Yield one problem per name that is not stored, or is another connector than in the code.

    `uses`: what a commit adds, with stored connectors.
    """
    missing: dict[NamedReference, list[str]] = {}
    others: dict[str, list[str]] = {}
    for use in uses:
        database = use.table.db
        found = stored.get(database.name)
        if isinstance(database, NamedReference):
            missing.setdefault(database, []).append(use.dataset)
        elif found is not None and is_other(use.table, found):
            others.setdefault(database.name, []).append(use.dataset)
    for reference, datasets in missing.items():
        yield Problem("connector-unknown", reference.name, _unknown(reference, datasets, stored))
    for name, datasets in others.items():
        found = stored[name]
        kind = kind_of(found) or ""
        text = (
            f"connector `{name}` of {_listed(datasets)} is defined in the code, and this platform "
            f"stores another one by that name ({TITLES[kind]}"
            f'{_at(address_of(found))}); write `{TITLES[kind]}.get("{name}")`, or give the one '
            "in the code another name"
        )
        yield Problem("connector-redefined", name, text)


def _unknown(reference: NamedReference, datasets: Sequence[str], stored: Stored) -> str:
    name, kind = reference.name, reference.kind
    title = TITLES.get(kind, kind)
    found = stored.get(name)
    if found is not None:
        return (
            f"connector `{name}` is stored as one of {TITLES[kind_of(found) or '']}, and "
            f"{_listed(datasets)} uses it as one of {title}; use its own kind, or add one of "
            f"{title} by another name: fennel-core connector add NAME {kind}"
        )
    return (
        f"connector `{name}` of {_listed(datasets)} has no address, and this platform stores none "
        f"by that name; add it: fennel-core connector add {quote(name)} {kind} --set … (or define "
        "it with its address in the code)"
    )


def _listed(datasets: Sequence[str]) -> str:
    names = list(dict.fromkeys(datasets))
    shown = ", ".join(f"`{each}`" for each in names[:LISTED])
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"dataset{'s' if len(names) > 1 else ''} {shown}{more}"


def _at(address: str) -> str:
    return f" at `{address}`" if address else ""
