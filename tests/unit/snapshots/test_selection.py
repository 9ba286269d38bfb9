"""Which job partitions a selection names, and the error for an unknown name."""

from __future__ import annotations

import pytest

from fennel_core.snapshots.selection import (
    LISTED_NAMES,
    NamedPartition,
    Selection,
    select_partitions,
)
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import JobId, PartitionIndex

KNOWN = [
    NamedPartition(JobId(f"{workspace}.job.{n}.1"), PartitionIndex(part), workspace, title)
    for workspace in ("shop", "bank")
    for n, title in enumerate(["Order: table", "Totals.by_user: aggregate", "OrderLine: table"])
    for part in range(2)
]


def found(selection: Selection) -> list[tuple[str, str, int]]:
    return [(each.workspace, each.title, each.part) for each in select_partitions(KNOWN, selection)]


def refused(selection: Selection) -> str:
    with pytest.raises(ApiError) as raised:
        select_partitions(KNOWN, selection)
    return raised.value.text


def test_a_dataset_selects_its_jobs_and_none_of_a_dataset_with_a_longer_name() -> None:
    assert found(Selection("shop", "Order")) == [
        ("shop", "Order: table", 0),
        ("shop", "Order: table", 1),
    ]
    assert found(Selection("bank", "Totals", parts=(1,))) == [
        ("bank", "Totals.by_user: aggregate", 1)
    ]


def test_a_workspace_selects_all_its_jobs_and_a_job_needs_no_workspace() -> None:
    assert {each[0] for each in found(Selection("bank"))} == {"bank"}
    assert found(Selection(jobs=("bank.job.2.1",), parts=(0,))) == [("bank", "OrderLine: table", 0)]


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (Selection(), "specify a workspace (and optionally a dataset), or job ids"),
        (Selection(dataset="Order"), "specify a workspace"),
        (Selection("shpo"), "unknown workspace `shpo`; valid names: shop, bank"),
        (
            Selection("shop", "Orders"),
            "unknown dataset with a job `Orders`; valid names: Order, OrderLine, Totals",
        ),
        (
            Selection("shop", jobs=("bank.job.2.1",)),
            "unknown job `bank.job.2.1`; valid names: shop.job.",
        ),
        (Selection("shop", "Order", parts=(0, 7)), "unknown partition 7; valid partitions: 0 to 1"),
    ],
)
def test_an_unknown_name_is_an_error_that_lists_the_valid_names(
    selection: Selection, message: str
) -> None:
    assert message in refused(selection)


def test_of_many_valid_names_only_the_most_similar_are_listed() -> None:
    many = [
        NamedPartition(JobId(f"w.job.{n}.1"), PartitionIndex(0), "w", f"Dataset{n}: table")
        for n in range(100)
    ]
    with pytest.raises(ApiError) as raised:
        select_partitions(many, Selection("w", "Datasat7"))
    assert raised.value.text.startswith(
        "unknown dataset with a job `Datasat7`; valid names: Dataset7, "
    )
    assert raised.value.text.endswith(f"and {100 - LISTED_NAMES} more")


def test_without_any_job_the_error_says_that_nothing_is_committed() -> None:
    with pytest.raises(ApiError, match="there are none because nothing is committed"):
        select_partitions([], Selection("w"))
