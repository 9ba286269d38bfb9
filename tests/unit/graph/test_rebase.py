"""What a commit keeps of the changes that another commit made while it was running."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fennel_core.graph.entity_graph import DeletedEntities, Graph
from fennel_core.graph.rebase import rebase_full, rebase_incremental, units
from tests.support.commit_graphs import edit_dataset, graph, number, values, without_dataset

BASE = graph("featuresets")
WIDER = values(number("added"))


def only(g: Graph, *names: str) -> Graph:
    """Return an incremental commit of the named datasets."""
    return Graph(
        datasets=tuple(d for d in g.datasets if d.name in names),
        pipelines=tuple(p for p in g.pipelines if p.dataset in names),
        operators=tuple(o for o in g.operators if o.dataset in names),
        sources=tuple(s for s in g.sources if s.dataset in names),
        indices=tuple(i for i in g.indices if i.dataset in names),
    )


def conflicts(rebased: object) -> list[str]:
    return [c.text for c in rebased.conflicts]


def test_a_branch_that_did_not_move_is_no_conflict() -> None:
    wanted = edit_dataset(BASE, "Profiles", WIDER)
    assert not rebase_full(BASE, BASE, wanted).conflicts
    rebased = rebase_incremental(BASE, BASE, only(wanted, "Profiles"))
    assert not rebased.conflicts
    assert units(rebased.graph) == units(wanted)


def test_a_full_commit_that_would_remove_what_the_branch_gained_is_a_conflict() -> None:
    old = without_dataset(BASE, "Items")
    assert conflicts(rebase_full(old, BASE, old)) == [
        "the branch has a new definition of dataset `Items`, which this commit removes"
    ]
    assert not rebase_full(old, BASE, BASE).conflicts, "both added the same definition"


def test_a_full_commit_that_would_revert_what_the_branch_changed_is_a_conflict() -> None:
    theirs = edit_dataset(BASE, "Items", WIDER)
    (text,) = conflicts(rebase_full(BASE, theirs, edit_dataset(BASE, "Profiles", WIDER)))
    assert (
        text
        == "the branch has another definition of dataset `Items` now, which this commit replaces"
    )
    assert not rebase_full(BASE, theirs, edit_dataset(theirs, "Profiles", WIDER)).conflicts


def test_a_full_commit_that_would_bring_back_what_the_branch_removed_is_a_conflict() -> None:
    theirs = without_dataset(BASE, "Items")
    assert conflicts(rebase_full(BASE, theirs, BASE)) == [
        "the branch no longer has dataset `Items`, which this commit adds again"
    ]


def test_incremental_commits_of_different_datasets_are_both_kept() -> None:
    theirs = edit_dataset(BASE, "Items", WIDER)
    ours = only(edit_dataset(BASE, "Profiles", WIDER), "Profiles")
    rebased = rebase_incremental(BASE, theirs, ours)
    assert not rebased.conflicts
    assert units(rebased.graph) == units(edit_dataset(theirs, "Profiles", WIDER))


def test_incremental_commits_that_change_one_dataset_conflict_unless_they_agree() -> None:
    theirs = edit_dataset(BASE, "Items", WIDER)
    ours = edit_dataset(BASE, "Items", values(number("other")))
    assert conflicts(rebase_incremental(BASE, theirs, only(ours, "Items"))) == [
        "both changed dataset `Items`"
    ]
    assert not rebase_incremental(BASE, theirs, only(theirs, "Items")).conflicts


def test_a_dataset_that_an_incremental_commit_repeats_unchanged_stays_as_the_branch_has_it() -> (
    None
):
    theirs = edit_dataset(BASE, "Items", WIDER)
    ours = only(edit_dataset(BASE, "Profiles", WIDER), "Items", "Profiles")
    rebased = rebase_incremental(BASE, theirs, ours)
    assert not rebased.conflicts
    assert [str(unit) for unit in rebased.kept] == ["dataset `Items`"]
    assert units(rebased.graph) == units(edit_dataset(theirs, "Profiles", WIDER))


def test_deleting_what_the_branch_changed_is_a_conflict() -> None:
    theirs = edit_dataset(BASE, "Items", WIDER)
    ours = Graph(deleted=DeletedEntities(datasets=("Items",)))
    assert conflicts(rebase_incremental(BASE, theirs, ours)) == ["both changed dataset `Items`"]


def reader(g: Graph) -> tuple[str, str]:
    """Return a derived dataset and the dataset that it reads."""
    pipeline = next(p for p in g.pipelines if len(p.inputs) == 1)
    return str(pipeline.dataset), str(pipeline.inputs[0])


@pytest.mark.parametrize("change", [WIDER, lambda d: replace(d, version=d.version + 1)])
def test_a_changed_schema_or_version_of_an_input_is_a_conflict(change: object) -> None:
    base = graph("operators")
    derived, source = reader(base)
    theirs = edit_dataset(base, source, change)
    ours = only(edit_dataset(base, derived, lambda d: replace(d, version=9)), derived)
    assert f"dataset `{derived}` reads dataset `{source}`, whose schema or version changed" in (
        conflicts(rebase_incremental(base, theirs, ours))
    )


def test_a_changed_description_of_an_input_is_no_conflict() -> None:
    base = graph("operators")
    derived, source = reader(base)
    theirs = edit_dataset(
        base, source, lambda d: replace(d, metadata=replace(d.metadata, description="new"))
    )
    ours = only(edit_dataset(base, derived, lambda d: replace(d, version=9)), derived)
    assert not rebase_incremental(base, theirs, ours).conflicts


def test_a_changed_lookup_dataset_conflicts_with_a_changed_featureset() -> None:
    extractor = next(x for x in BASE.extractors if x.datasets)
    name, dataset = extractor.featureset, extractor.datasets[0]
    ours = Graph(
        featuresets=tuple(
            replace(f, metadata=replace(f.metadata, owner="me@x.y"))
            for f in BASE.featuresets
            if f.name == name
        ),
        features=BASE.features_of(name),
        extractors=BASE.extractors_of(name),
    )
    theirs = edit_dataset(BASE, dataset, WIDER)
    assert conflicts(rebase_incremental(BASE, theirs, ours)) == [
        f"featureset `{name}` reads dataset `{dataset}`, whose schema or version changed"
    ]
