"""A chosen `history` without an effect is named with the reason, once, and no default is."""

from __future__ import annotations

from dataclasses import replace

from fennel_core.blueprints.compile import compile_datasets
from fennel_core.blueprints.logical import Compiled
from fennel_core.blueprints.retention_notices import DEFAULT_HISTORY_US, retention_notices
from fennel_core.vocab.ids import DatasetName
from fennel_core.wire.operators import DatasetRef
from tests.support.compiler_inputs import derived, node, schema, sourced

DAY = 86_400_000_000
USERS = schema("user", "city:str")


def texts(compiled: Compiled, history_us: int, *, removed: bool = True) -> list[str]:
    chosen = tuple(replace(each, history_us=history_us) for each in compiled.datasets)
    version = replace(compiled, datasets=chosen)
    return [f"{n.code} {n.text}" for n in retention_notices(version, removed=removed)]


READ = (
    "a job other than the table of its lookups reads them, and needs versions of a key before the "
    "last"
)


def test_a_keyed_dataset_that_a_job_reads_keeps_its_rows_longer() -> None:
    copy = derived("Copy", USERS, [node("Copy", DatasetRef(DatasetName("Users")), USERS)])
    compiled = compile_datasets([sourced("Users", USERS), copy], 2)
    assert texts(compiled, 30 * DAY) == [
        "history-not-applied dataset `Users`: history 30d is recorded; rows are kept longer, "
        f"because {READ}"
    ]
    assert texts(compiled, DEFAULT_HISTORY_US) == texts(compiled, 0) == []


def test_others_do_not() -> None:
    assert texts(compile_datasets([sourced("Users", USERS)], 2), 30 * DAY) == []
    clicks = replace(USERS, keys=(), values=(*USERS.keys, *USERS.values))
    copy = derived("Copy", clicks, [node("Copy", DatasetRef(DatasetName("Clicks")), clicks)])
    assert texts(compile_datasets([sourced("Clicks", clicks), copy], 2), 30 * DAY) == []


def test_a_dataset_whose_rows_others_need_for_longer_is_named() -> None:
    clicks = replace(USERS, keys=(), values=(*USERS.keys, *USERS.values))
    copy = derived("Copy", clicks, [node("Copy", DatasetRef(DatasetName("Clicks")), clicks)])
    compiled = compile_datasets([sourced("Clicks", clicks), copy], 2)
    histories = {"Clicks": 30 * DAY, "Copy": 89 * DAY + 1}
    chosen = tuple(replace(each, history_us=histories[each.name]) for each in compiled.datasets)
    (notice,) = retention_notices(replace(compiled, datasets=chosen), removed=True)
    assert notice.entity == "Clicks"
    assert notice.text.endswith(
        "history 30d is recorded; rows are kept 90 days, because datasets computed from them need "
        "them"
    )


def test_without_the_setting_every_chosen_history_is_named() -> None:
    clicks = replace(USERS, keys=(), values=(*USERS.keys, *USERS.values))
    copy = derived("Copy", USERS, [node("Copy", DatasetRef(DatasetName("Users")), USERS)])
    both = compile_datasets([sourced("Clicks", clicks), sourced("Users", USERS), copy], 2)
    compiled = replace(both, datasets=tuple(d for d in both.datasets if d.name != "Copy"))
    begin = "history 30d is recorded; rows are kept longer while the setting"
    off = "FENNEL_HISTORY_RETENTION is off"
    assert texts(compiled, 30 * DAY, removed=False) == [
        f"history-not-applied dataset `Clicks`: {begin} {off}",
        f"history-not-applied dataset `Users`: {begin} {off}, and also when it is on, because "
        f"{READ}",
    ]
    assert texts(compiled, DEFAULT_HISTORY_US, removed=False) == []


def test_an_aggregate_that_nothing_computes_is_named() -> None:
    compiled = compile_datasets([sourced("Users", USERS)], 2)
    (users,) = compiled.datasets
    (text,) = texts(replace(compiled, datasets=(replace(users, topic=None, served_by=None),)), DAY)
    assert text.endswith("nothing computes it, and the rows that it would aggregate are others'")
