"""Who is meant, and what somebody is told who names what is not there."""

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


def found(wish: Selection) -> list[tuple[str, str, int]]:
    return [(each.workspace, each.title, each.part) for each in select_partitions(KNOWN, wish)]


def refused(wish: Selection) -> str:
    with pytest.raises(ApiError) as raised:
        select_partitions(KNOWN, wish)
    return raised.value.text


def test_a_dataset_means_every_job_that_works_for_it_and_no_other_of_a_longer_name() -> None:
    assert found(Selection("shop", "Order")) == [
        ("shop", "Order: table", 0),
        ("shop", "Order: table", 1),
    ]
    assert found(Selection("bank", "Totals", parts=(1,))) == [
        ("bank", "Totals.by_user: aggregate", 1)
    ]


def test_a_workspace_alone_means_all_of_it_and_a_job_needs_no_workspace() -> None:
    assert {each[0] for each in found(Selection("bank"))} == {"bank"}
    assert found(Selection(jobs=("bank.job.2.1",), parts=(0,))) == [("bank", "OrderLine: table", 0)]


@pytest.mark.parametrize(
    ("wish", "told"),
    [
        (Selection(), "name a workspace (and a dataset of it), or job ids"),
        (Selection(dataset="Order"), "name a workspace"),
        (Selection("shpo"), "no workspace `shpo`: there is shop, bank"),
        (
            Selection("shop", "Orders"),
            "no dataset with a job `Orders`: there is Order, OrderLine, Totals",
        ),
        (Selection("shop", jobs=("bank.job.2.1",)), "no job `bank.job.2.1`: there is shop.job."),
        (Selection("shop", "Order", parts=(0, 7)), "no partition 7: there are 0 to 1"),
    ],
)
def test_a_name_that_leads_nowhere_is_answered_with_those_there_are(
    wish: Selection, told: str
) -> None:
    assert told in refused(wish)


def test_of_very_many_names_only_the_likeliest_are_told() -> None:
    many = [
        NamedPartition(JobId(f"w.job.{n}.1"), PartitionIndex(0), "w", f"Dataset{n}: table")
        for n in range(100)
    ]
    with pytest.raises(ApiError) as raised:
        select_partitions(many, Selection("w", "Datasat7"))
    assert raised.value.text.startswith(
        "there is no dataset with a job `Datasat7`: there is Dataset7, "
    )
    assert raised.value.text.endswith(f"and {100 - LISTED_NAMES} more")


def test_without_any_job_that_is_what_is_told() -> None:
    with pytest.raises(ApiError, match="none at all; nothing is committed"):
        select_partitions([], Selection("w"))
