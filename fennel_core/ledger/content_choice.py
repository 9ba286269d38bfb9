"""Read what the choice of the contents of source datasets depends on; `source_contents.py` decides.

T1 decides under the workspace's lock. Definitions are compiled without it, so T1 may find that
another content is due than the one they were compiled with; they are then compiled again.
"""

from __future__ import annotations

from collections.abc import Mapping

from fennel_core.bank.store import AssetState
from fennel_core.blueprints import stored_names
from fennel_core.blueprints.asset_names import key_of
from fennel_core.blueprints.logical import AssetKey, AssetKind, Compiled
from fennel_core.blueprints.source_contents import (
    ContentFacts,
    SourceDataset,
    choose_contents,
    continued_with_other_sources,
    source_datasets,
)
from fennel_core.blueprints.spec import Catalog
from fennel_core.ledger.errors import CommitConflict
from fennel_core.ledger.store import Branch, Commit, LedgerTransaction
from fennel_core.vocab.ids import AssetId, CommitId, DatasetName, WorkspaceId


async def catalog_of(tx: LedgerTransaction, commit: CommitId | None) -> Catalog | None:
    """Return the catalog of a version; None for an empty branch, and before T1."""
    stored = None if commit is None else await tx.catalog(commit)
    return None if stored is None else stored_names.loads(stored, Catalog)


async def due_contents(
    tx: LedgerTransaction, branch: Branch, before: Catalog | None, compiled: Compiled
) -> Mapping[DatasetName, AssetKey]:
    """Return the topic that each source dataset of the commit must have.

    `before` is the catalog of the branch. For a commit that will run, the caller holds the
    workspace's lock.
    """
    topics = (
        set()
        if before is None
        else {AssetId(d.topic) for d in before.datasets if d.is_source and d.topic is not None}
    )
    shared = topics - set(await tx.bank.unheld(topics, ignoring=branch.name))
    taken = await _taken(tx, branch.workspace, source_datasets(compiled))
    return choose_contents(compiled, ContentFacts(before, shared, taken))


async def _taken(
    tx: LedgerTransaction, workspace: WorkspaceId, datasets: list[SourceDataset]
) -> set[AssetKey]:
    """Return the beginnings of the datasets that are alive and cannot be shared.

    They had other sources since, or ingest does not write to them any more: only reads of a branch
    whose new version is warming use them, so they may lack rows. It follows every beginning that is
    alive, because this commit may continue it.
    """
    taken: set[AssetKey] = set()
    number = 0
    while datasets:
        keys = sorted({dataset.beginning(number) for dataset in datasets})
        alive = await tx.bank.alive(workspace, keys)
        fed = {dataset.beginning(number) for dataset in datasets if dataset.sources}
        changed = await tx.bank.with_changed_sources(alive.values())
        stopped = await tx.without_target(alive[key] for key in fed if key in alive)
        taken |= {key_of(id_) for id_ in changed | stopped}
        datasets = [d for d in datasets if d.beginning(number) in alive]
        number += 1
    return taken


async def mark_changed_contents(
    tx: LedgerTransaction,
    before: Catalog | None,
    compiled: Compiled,
    names: Mapping[AssetKey, AssetId],
) -> None:
    """Exclude the contents that a commit continues with other sources from being shared again."""
    changed = continued_with_other_sources(before, compiled)
    if changed:
        await tx.bank.mark_sources_changed(names[key] for key in changed)


async def check_contents_are_fed(tx: LedgerTransaction, row: Commit) -> None:
    """Raise CommitConflict if a content that the commit shares was dropped by others since T1.

    Ingest has written no rows to its topic since then, and no later commit would notice: every
    live content of a running commit must be in the target of some branch until T2. What the commit
    creates or revives has no rows to miss. The caller has the lock; the reservations still exist.
    """
    reserved = await tx.bank.summaries(await tx.bank.reserved(row.id))
    live = [h.id for h in reserved if h.state is AssetState.LIVE and h.key.kind is AssetKind.TOPIC]
    dropped = await tx.without_target(live, or_reservation=False) if live else frozenset()
    after = await catalog_of(tx, row.id) if dropped else None
    if after is None:
        return
    fed = {AssetId(source.topic) for source in after.sources}
    titles = sorted(h.title for h in reserved if h.id in dropped & fed)
    if titles:
        names = ", ".join(f"`{title}`" for title in titles)
        raise CommitConflict(
            row.branch,
            [f"it shares the rows of {names}, which another branch has stopped collecting since"],
        )


async def check_contents_at_switch(tx: LedgerTransaction, row: Commit) -> None:
    """Raise CommitConflict if a branch was cloned whose content the commit gives other sources.

    The commit holds references and no reservations any more; the caller has the lock.
    """
    held = await tx.bank.references(row.workspace, row.branch, row.id)
    marked = await tx.bank.with_changed_sources(held)
    shared = marked - set(await tx.bank.unheld(marked, ignoring=row.branch))
    if not shared:
        return
    after = await catalog_of(tx, row.id)
    assert after is not None, "T1 stored the catalog"
    changed = continued_with_other_sources(await catalog_of(tx, row.base), after)
    titles = sorted(
        summary.title for summary in await tx.bank.summaries(shared) if summary.key in changed
    )
    if titles:
        names = ", ".join(f"`{title}`" for title in titles)
        raise CommitConflict(
            row.branch,
            [f"it was cloned, and the clone shares the rows of {names}, whose sources change"],
        )
