"""`status` lists everything of a small platform, and of a large one what needs attention."""

from typing import Any

import pytest

from fennel_core.apps.local import status_tables


def partition(number: int, workspace: str = "demo", **more: Any) -> dict[str, Any]:
    row = {
        "job": f"D.p{number}: map",
        "id": f"{workspace}.job.x.{number}",
        "part": number % 4,
        "slot": "engine-0",
        "epoch": 1,
    }
    return row | {"status": "running", "lag": 2, "reported_s": 0.1, "error": None} | more


def test_a_small_platform_is_listed_with_owner_lag_and_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status_tables.print_partitions(
        [partition(1), partition(2, status="parked", error="division by zero")]
    )
    shown = capsys.readouterr().out
    assert "D.p1: map" in shown
    assert "engine-0" in shown
    assert "division by zero" in shown


def test_a_large_platform_is_counted_and_only_unhealthy_partitions_are_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [partition(n, workspace=f"w{n % 2}") for n in range(200)]
    status_tables.print_partitions(
        [*rows, partition(777, slot=None), partition(778, status="parked")]
    )
    shown = capsys.readouterr().out
    assert [line.split() for line in shown.splitlines() if line.startswith("w")] == [
        ["workspace", "status", "job", "partitions", "lag"],
        ["w0", "running", "100", "200"],
        ["w1", "running", "100", "200"],
    ]
    assert "2 of them need attention:" in shown
    assert [n for n in ("D.p777", "D.p778", "D.p5:") if n in shown] == ["D.p777", "D.p778"]


@pytest.mark.parametrize(
    ("partitions", "message"), [(None, "does not respond"), ([], "nothing is committed")]
)
def test_an_empty_or_unknown_status_is_explained(
    partitions: list[Any] | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status_tables.print_partitions(partitions)
    assert message in capsys.readouterr().out


def test_a_stream_that_cannot_be_read_is_shown_with_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    read = {"workspace": "demo", "source": "shop/orders", "failures": 0, "behind": 0}
    read |= {"total_failures": 4, "reason": None, "paused": False, "ended": False, "stale_s": None}
    read |= {"rows_per_s": None, "rows": 34}
    away = read | {"source": "shop/users", "failures": 3, "reason": "no topic [users]"}
    late = read | {"source": "shop/late", "behind": 7}
    idle = read | {"source": "shop/idle", "paused": True}
    over = read | {"source": "shop/over", "ended": True}
    slow = read | {"source": "shop/slow", "stale_s": 312.4}
    stale = read | {"source": "shop/stale", "reason": "it was not read to its end for 7200 s"}
    status_tables.print_sources([away | {"behind": None}, stale, read, idle, over, slow])
    shown = capsys.readouterr().out
    assert "messages behind" not in shown
    status_tables.print_sources(
        [away, late | {"source": "shop/a"}, late | {"behind": 12, "rows_per_s": 2.5}]
    )
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "messages behind" in line] == [
        "Stream shop/late of demo is 12 messages behind, limited to 2.5 rows per second",
        "Stream shop/a of demo is 7 messages behind",
    ]
    assert "Streams: 3 read, 1 broken, 1 paused, 1 ended" in shown
    assert "Stream shop/stale of demo: it was not read to its end for 7200 s" in shown
    assert [line.split()[-2:] for line in shown.splitlines() if line.startswith("shop/stale")] == [
        ["running", "0"]
    ]
    assert "Stream shop/slow of demo was not read to its end for 312 s" in shown
    assert "Stream shop/over of demo has ended: nothing came for its idleness" in shown
    assert "Stream shop/idle of demo is paused" in shown
    assert "Stream shop/users of demo cannot be read (3 attempts): no topic [users]" in shown
    for nothing in (None, []):
        status_tables.print_sources(nothing)
    assert capsys.readouterr().out == ""


def test_orders_of_sinks_that_are_not_carried_out_are_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sink = {"workspace": "shop", "dataset": "Adult", "behind": 0, "reason": None, "paused": True}
    sink |= {"failures": 0, "events": 0}
    status_tables.print_sinks(
        [
            sink | {"sink": "out/a", "rewinding": True, "replays": 2},
            sink | {"sink": "out/b", "rewinding": False, "replays": 1},
            sink | {"sink": "out/c", "rewinding": False, "replays": 0},
        ]
    )
    shown = capsys.readouterr().out
    orders = "of shop has orders that are not carried out yet:"
    assert f"Sink out/a {orders} a rewind, 2 dead letters to send again" in " ".join(shown.split())
    assert f"Sink out/b {orders} 1 dead letters to send again" in " ".join(shown.split())
    assert f"out/c {orders}" not in " ".join(shown.split())


def test_each_stream_and_sink_is_shown_with_rows_lag_state_and_failures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one = {"workspace": "demo", "failures": 0, "behind": 7, "reason": None, "paused": False}
    read = one | {"source": "shop/orders", "rows": 34, "ended": False, "stale_s": None}
    read |= {"rows_per_s": None, "behind_ms": None, "unread_s": None}
    shards = read | {"source": "shop/clicks", "behind_ms": 1234, "rows": None}
    table = read | {"source": "shop/people", "behind": None, "unread_s": 12.6}
    over = read | {"source": "shop/over", "ended": True, "behind": None}
    away = read | {"source": "shop/[users]", "reason": "no topic", "failures": 3}
    status_tables.print_sources([away, read, shards, table, over, *[read] * 100])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if line[:1] == ["shop/orders"]] == [
        ["shop/orders", "demo", "34", "7", "running", "0"]
    ] * (status_tables.MAX_ROWS - 4)
    for shown in (
        ["shop/[users]", "demo", "34", "7", "broken", "3"],
        ["shop/clicks", "demo", "?", "1.2", "s", "running", "0"],
        ["shop/people", "demo", "34", "read", "13", "s", "ago", "running", "0"],
        ["shop/over", "demo", "34", "?", "ended", "0"],
    ):
        assert shown in lines
    sink = one | {"sink": "out/adults", "dataset": "Adult", "events": 12}
    status_tables.print_sinks([sink, sink | {"sink": "out/b", "paused": True, "events": None}])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["out/adults", "demo", "Adult", "12", "7", "running", "0"] in lines
    assert ["out/b", "demo", "Adult", "?", "7", "paused", "0"] in lines


def test_a_failed_drill_is_shown_with_time_and_both_hashes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    message = "Order: table (shop.job.a.1[0]): differs: hashes differ (live aa, drilled bb)"
    status_tables.print_drills([{"message": message, "drilled_at": "2026-01-01T03:00:00+00:00"}])
    assert (
        " ".join(capsys.readouterr().out.split())
        == f"Drill of 2026-01-01T03:00:00+00:00: {message}"
    )
    status_tables.print_drills([])
    status_tables.print_drills(None)
    assert capsys.readouterr().out == ""


def test_lookups_that_differ_are_shown_with_the_time_of_the_check(
    capsys: pytest.CaptureFixture[str],
) -> None:
    message = "Totals of shop (shop.job.a.1): differs: 20 keys compared, key [7]: `sum`"
    rows = [{"message": message, "checked_at": "2026-01-01T04:00:00+00:00"}]
    status_tables.print_integrity(rows)
    shown = " ".join(capsys.readouterr().out.split())
    assert shown == (
        f"Integrity check of 2026-01-01T04:00:00+00:00: {message} "
        f"What to do: {status_tables.INTEGRITY_REMEDY}"
    )
    status_tables.print_integrity([])
    status_tables.print_integrity(None)
    assert capsys.readouterr().out == ""


def test_an_item_that_reconcile_fails_to_finish_is_shown_with_its_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = {"kind": "commit", "commit": "c1", "workspace": "shop", "attempts": 3, "error": "bad"}
    status_tables.print_failing_items([row])
    shown = capsys.readouterr().out
    assert shown == "Reconcile fails for commit c1 (3 attempts): bad\n"
    status_tables.print_failing_items(None)
    assert capsys.readouterr().out == ""


def test_dead_letters_are_listed_newest_first_with_their_total(
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = {
        "workspace": "shop",
        "subject": "Users",
        "job": None,
        "kind": "not-admitted",
        "rows": 5,
        "open": 3,
        "newest_at": "2026-01-01T03:00:00+00:00",
        "newest_reason": "column `[b]`: no number",
    }
    later = row | {"subject": "Orders", "open": 4, "newest_at": "2026-01-02T03:00:00+00:00"}
    status_tables.print_dead_letters([row, later])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "Dead letters: 7 rows"
    assert [line.split()[1] for line in lines[3:]] == ["Orders", "Users"]
    assert all("`[b]`: no number" in line for line in lines[3:])
    status_tables.print_dead_letters([row | {"open": 0}])
    status_tables.print_dead_letters([])
    status_tables.print_dead_letters(None)
    assert capsys.readouterr().out == ""


def retained_row(ends: str | None) -> dict[str, str | None]:
    return {
        "kind": "topic",
        "title": "Order",
        "asset": "shop.topic.a.1",
        "workspace": "shop",
        "released_at": "2026-01-01T00:00:00+00:00",
        "destroyed_after": ends,
    }


def test_retained_assets_are_counted_with_the_end_of_their_period(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ends = ("2026-01-02T00:00:00+00:00", "2026-01-03T00:00:00+00:00", None)
    status_tables.print_retained([retained_row(end) for end in ends])
    assert " ".join(capsys.readouterr().out.split()) == (
        "Retained assets: 3; 2 of them are destroyed by 2026-01-03T00:00:00+00:00; "
        "1 are kept until the loss of their rows is confirmed"
    )
    status_tables.print_retained([])
    status_tables.print_retained(None)
    assert capsys.readouterr().out == ""


def test_the_number_of_partitions_of_each_workspace_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status_tables.print_workspaces(
        [{"name": "shop", "partitions": 8}, {"name": "new", "partitions": None}]
    )
    assert capsys.readouterr().out.strip() == "Partitions per topic and job: shop 8"
    status_tables.print_workspaces(None)
    assert capsys.readouterr().out == ""


def test_the_jobs_of_retained_assets_need_no_attention() -> None:
    row = {"id": "shop.job.a.1", "status": "paused", "slot": None, "error": None}
    assert not status_tables.needs_attention(row)
    assert status_tables.needs_attention(row | {"status": "idle"})


def of_topic(files: int, rows: int, lag: int, waiting_s: int) -> dict[str, Any]:
    return {
        "files": files,
        "rows": rows,
        "expired_rows": rows // 10,
        "size_bytes": 1,
        "lag_records": lag,
        "waiting_s": waiting_s,
        "late": waiting_s > 900,
    }


def test_history_is_shown_by_topic_with_its_lag(capsys: pytest.CaptureFixture[str]) -> None:
    report = [
        {"topic": "shop.topic.a.1", **of_topic(3, 20_000, 0, 0)},
        {"topic": "demo.topic.b.1", **of_topic(0, 0, 12, 901)},
    ]
    status_tables.print_history(status_tables.history_by_topic(report))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[2:4] == [
        ["demo.topic.b.1", "0", "0", "0", "12", "901"],
        ["shop.topic.a.1", "3", "20000", "2000", "0", "0"],
    ]
    assert " ".join(lines[4]).startswith("History is late for 1 topics, the first is demo.topic.b")


def test_lost_history_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    lost = {"topic": "shop.topic.a.1", **of_topic(3, 20_000, 0, 0), "lost_records": 7}
    status_tables.print_history(status_tables.history_by_topic([lost]))
    shown = " ".join(capsys.readouterr().out.split())
    assert "History lacks 7 messages of 1 topics, the first is shop.topic.a.1" in shown


def test_the_history_of_many_topics_is_summed_by_workspace(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status_tables.print_history(
        {f"w{n % 2}.topic.{n}.1": of_topic(1, 10, n % 2, n) for n in range(100)}
    )
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[2:] == [
        ["w0", "50", "500", "50", "0", "98"],
        ["w1", "50", "500", "50", "50", "99"],
    ]


@pytest.mark.parametrize(
    ("topics", "message"), [(None, "does not respond"), ({}, "there is no dataset with a topic")]
)
def test_an_empty_or_unknown_history_is_explained(
    topics: dict[str, Any] | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status_tables.print_history(topics)
    assert message in capsys.readouterr().out


LOST = """# TYPE fennel_query_log_rows counter
fennel_query_log_rows_total{workspace="shop",outcome="written"} 9000.0
fennel_query_log_rows_total{workspace="shop",outcome="queue-full"} 12.0
fennel_query_log_rows_total{workspace="shop",outcome="no-topic"} 0.0
fennel_query_log_rows_total{workspace="shop",outcome="not-written"} 3.0
fennel_query_log_rows_total{workspace="ads",outcome="written"} 5.0
"""


def test_rows_that_the_query_log_lost_are_shown_with_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status_tables.print_lost_rows(status_tables.parse_lost_rows(LOST))
    shown = " ".join(capsys.readouterr().out.split())
    assert shown == (
        "The query log of shop lost rows since the query server started: 3 not-written, "
        "12 queue-full."
    )
    status_tables.print_lost_rows(None)
    assert capsys.readouterr().out == ""


def test_branches_whose_reads_have_not_moved_are_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = {"workspace": "shop", "branch": "dev[1]", "serving": "c1", "target": "c2"}
    status_tables.print_warming([row, row | {"branch": "new", "serving": None}])
    shown = " ".join(capsys.readouterr().out.split())
    assert "Branch shop/dev[1] is warming: the jobs of commit c2 have not caught up" in shown
    assert "reads stay on commit c1" in shown
    assert "Branch shop/new is warming" in shown
    assert "reads have not begun" in shown
    status_tables.print_warming(None)
    status_tables.print_warming([])
    assert capsys.readouterr().out == ""
    status_tables.print_warming([row] * (status_tables.MAX_ROWS + 2))
    assert "and 2 more branches" in capsys.readouterr().out


def test_datasets_are_listed_until_their_erased_keys_have_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    numbers = {"keys": 3, "rows": 70, "files": 2, "objects": 1, "removed_rows": 5}
    row = numbers | {"workspace": "w", "topic": "w.topic.a.1", "since": "2026-01-02T03:04:05"}
    status_tables.print_erasures(
        [
            row | {"dataset": "Users", "keys_left": 2, "kept_because": None},
            row | {"dataset": "Changes", "keys_left": 3, "kept_because": "rows are retracted"},
            row | {"dataset": "Clean", "keys_left": 0, "kept_because": None},
        ]
    )
    shown = capsys.readouterr().out
    users, changes = (
        next(line for line in shown.splitlines() if name in line) for name in ("Users", "Changes")
    )
    assert users.split()[3:9] == ["3", "2", "70", "2", "1", "5"]
    assert "waiting since 2026-01-02T03:04:05" in users
    assert "kept: rows are retracted" in changes
    assert "Clean" not in shown
    status_tables.print_erasures(None)
    status_tables.print_erasures([])
    assert capsys.readouterr().out == ""


def test_workspaces_that_keep_old_rows_are_named_with_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    row = {"workspace": "w", "at": "2026-01-02T03:04:05", "commit": "c7"}
    reasons = ("unconfirmed", "grace", "commit")
    status_tables.print_held_rows([row | {"reason": reason} for reason in reasons])
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("Rows older than 'history' stay in workspace w: ") for line in lines)
    unconfirmed, grace, commit = lines
    assert "commit its definitions with allow_data_loss" in unconfirmed
    assert "they may leave from 2026-01-02T03:04:05 on" in grace
    assert "commit c7, received 2026-01-02T03:04:05, has neither finished" in commit
    many = [row | {"reason": "commit"}] * (status_tables.MAX_ROWS + 2)
    status_tables.print_held_rows(many)
    assert "and 2 more: " in capsys.readouterr().out
    status_tables.print_held_rows(None)
    status_tables.print_held_rows([])
    assert capsys.readouterr().out == ""
