"""Erased keys: by the whole key or a part of it, for every job that serves the dataset's name."""

import msgspec

from fennel_core.blueprints.spec import DatasetView
from fennel_core.connections.erasures import ErasedKeys
from fennel_core.query.erasures import Erasures, erasure_rules
from fennel_core.query.program import ServedDataset
from fennel_core.query.view import View
from fennel_core.vocab.dtypes import Field, Int, Str
from fennel_core.vocab.ids import MAIN_BRANCH, BranchName, DatasetName, JobId, WorkspaceId
from fennel_core.vocab.schema import Schema


def key_of(*values: object) -> bytes:
    return msgspec.msgpack.encode(values)


SCHEMA = Schema((Field("user", Str()), Field("shop", Int())), (), "at")
VIEW = DatasetView(
    DatasetName("Visits"), 1, SCHEMA, None, JobId("w.job.visits.1"), True, True, ("user",), False
)
TABLE = ServedDataset(VIEW, 4, ())
KEYS = [key_of("ann", 1), key_of("bob", 1), key_of("ann", 2)]


def hidden(*erased: ErasedKeys) -> list[int]:
    return [
        i
        for i, key in enumerate(KEYS)
        if any(rule.hides(key) for rule in erasure_rules(TABLE, erased))
    ]


def test_a_part_of_the_key_hides_every_key_that_has_it():
    assert hidden(ErasedKeys(("user",), frozenset({key_of("ann")}))) == [0, 2]


def test_a_whole_key_hides_itself_only():
    assert hidden(ErasedKeys(("user", "shop"), frozenset({key_of("ann", 2)}))) == [2]


def test_columns_may_be_erased_in_another_order_than_the_keys():
    assert hidden(ErasedKeys(("shop", "user"), frozenset({key_of(1, "bob")}))) == [1]


def test_erased_columns_that_are_not_keys_of_this_version_hide_nothing():
    assert hidden(ErasedKeys(("zip",), frozenset({key_of("ann")}))) == []


class KnownViews:
    def __init__(self, views: dict) -> None:
        self.views = views

    def known(self) -> dict:
        return self.views


def test_an_erasure_holds_for_its_workspace_and_dataset_only():
    view = View(None, None, None, {VIEW.name: TABLE})  # type: ignore[arg-type]  # only its tables are read
    erased = Erasures(
        None,
        KnownViews(
            {(WorkspaceId("w"), MAIN_BRANCH): view, (WorkspaceId("w"), BranchName("b")): view}
        ),
    )  # type: ignore[arg-type]  # no database
    assert erased.hidden(JobId("w.job.visits.1"), KEYS) == []
    for workspace, dataset, expected in (
        ("w", "Visits", [0, 2]),
        ("v", "Visits", []),
        ("w", "Others", []),
    ):
        erased._erased = {
            WorkspaceId(workspace): {
                DatasetName(dataset): (ErasedKeys(("user",), frozenset({key_of("ann")})),)
            }
        }
        erased._rules = {}
        assert erased.hidden(JobId("w.job.visits.1"), KEYS) == expected
        assert erased.hidden(JobId("w.job.others.1"), KEYS) == []
