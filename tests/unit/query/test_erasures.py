"""Erased keys: by the whole key or a part of it, in every version of the dataset's name."""

import msgspec
import pytest

from fennel_core.connections.erasures import ErasableKeys, ErasedKeys
from fennel_core.query.erasures import Erasures, erasure_rules
from fennel_core.query.errors import ErasuresUnknown
from fennel_core.vocab.ids import DatasetName, WorkspaceId


def key_of(*values: object) -> bytes:
    return msgspec.msgpack.encode(values)


COLUMNS = ("user", "shop")
KEYS = [key_of("ann", 1), key_of("bob", 1), key_of("ann", 2)]


def hidden(*erased: ErasedKeys) -> list[int]:
    rules = erasure_rules(COLUMNS, erased)
    return [i for i, key in enumerate(KEYS) if any(rule.hides(key) for rule in rules)]


def test_a_part_of_the_key_hides_every_key_that_has_it():
    assert hidden(ErasedKeys(("user",), frozenset({key_of("ann")}))) == [0, 2]


def test_a_whole_key_hides_itself_only():
    assert hidden(ErasedKeys(("user", "shop"), frozenset({key_of("ann", 2)}))) == [2]


def test_columns_may_be_erased_in_another_order_than_the_keys():
    assert hidden(ErasedKeys(("shop", "user"), frozenset({key_of(1, "bob")}))) == [1]


def test_erased_columns_that_are_not_keys_of_this_version_hide_nothing():
    assert hidden(ErasedKeys(("zip",), frozenset({key_of("ann")}))) == []


def test_an_erasure_holds_for_its_workspace_and_dataset_only():
    erased = Erasures("postgresql://nobody@127.0.0.1:1/none")
    asked = ErasableKeys(WorkspaceId("w"), DatasetName("Visits"), COLUMNS)
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
        assert list(erased.hidden(asked, KEYS)) == expected


def test_reads_are_refused_before_the_erasures_have_been_read():
    erased = Erasures("postgresql://nobody@127.0.0.1:1/none")
    with pytest.raises(ErasuresUnknown):
        erased.hidden(ErasableKeys(WorkspaceId("w"), DatasetName("Visits"), COLUMNS), KEYS)
    assert erased.problem() is not None
