"""Who is meant, and what somebody is told who names what is not there."""

from __future__ import annotations

import pytest

from fennel_core.snapshots.choice import NAMED_AT_MOST, Named, Wish, chosen
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import JobId, PartitionIndex

KNOWN = [
    Named(JobId(f"{workspace}.job.{n}.1"), PartitionIndex(part), workspace, title)
    for workspace in ("shop", "bank")
    for n, title in enumerate(["Order: table", "Totals.by_user: aggregate", "OrderLine: table"])
    for part in range(2)
]


def found(wish: Wish) -> list[tuple[str, str, int]]:
    return [(each.workspace, each.title, each.part) for each in chosen(KNOWN, wish)]


def refused(wish: Wish) -> str:
    with pytest.raises(ApiError) as raised:
        chosen(KNOWN, wish)
    return raised.value.text


def test_a_dataset_means_every_job_that_works_for_it_and_no_other_of_a_longer_name() -> None:
    assert found(Wish("shop", "Order")) == [
        ("shop", "Order: table", 0),
        ("shop", "Order: table", 1),
    ]
    assert found(Wish("bank", "Totals", parts=(1,))) == [("bank", "Totals.by_user: aggregate", 1)]


def test_a_workspace_alone_means_all_of_it_and_a_job_needs_no_workspace() -> None:
    assert {each[0] for each in found(Wish("bank"))} == {"bank"}
    assert found(Wish(jobs=("bank.job.2.1",), parts=(0,))) == [("bank", "OrderLine: table", 0)]


@pytest.mark.parametrize(
    ("wish", "told"),
    [
        (Wish(), "name a workspace (and a dataset of it), or job ids"),
        (Wish(dataset="Order"), "name a workspace"),
        (Wish("shpo"), "no workspace `shpo`: there is shop, bank"),
        (
            Wish("shop", "Orders"),
            "no dataset with a job `Orders`: there is Order, OrderLine, Totals",
        ),
        (Wish("shop", jobs=("bank.job.2.1",)), "no job `bank.job.2.1`: there is shop.job."),
        (Wish("shop", "Order", parts=(0, 7)), "no partition 7: there are 0 to 1"),
    ],
)
def test_a_name_that_leads_nowhere_is_answered_with_those_there_are(wish: Wish, told: str) -> None:
    assert told in refused(wish)


def test_of_very_many_names_only_the_likeliest_are_told() -> None:
    many = [
        Named(JobId(f"w.job.{n}.1"), PartitionIndex(0), "w", f"Dataset{n}: table")
        for n in range(100)
    ]
    with pytest.raises(ApiError) as raised:
        chosen(many, Wish("w", "Datasat7"))
    assert raised.value.text.startswith(
        "there is no dataset with a job `Datasat7`: there is Dataset7, "
    )
    assert raised.value.text.endswith(f"and {100 - NAMED_AT_MOST} more")


def test_without_any_job_that_is_what_is_told() -> None:
    with pytest.raises(ApiError, match="none at all; nothing is committed"):
        chosen([], Wish("w"))
