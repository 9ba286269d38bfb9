"""`fennel-core source` and `fennel-core deadletters` over a simulated API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from fennel_core.apps.cli import main

SOURCE = {
    "source": "shop/orders",
    "kind": "kafka",
    "branches": ["main"],
    "state": "parked",
    "paused_by": None,
    "paused_at": None,
    "error": "no topic [orders]",
    "remedy": "if its credentials have changed: fennel-core connector rotate shop",
    "failures": 3,
    "retry_at": "2026-01-01T00:00:00+00:00",
    "behind": None,
    "ended_at": None,
    "unread_s": 312.4,
    "rows_per_s": 12.5,
    "limited_by": "ann",
    "positions": {"0": 41},
    "datasets": [
        {"dataset": "Order", "cdc": "append", "accepted": 7, "late": 2, "dead": 1, "ended": False},
    ],
}
OVER = SOURCE | {
    "source": "shop/over",
    "state": "ended",
    "unread_s": 3.0,
    "ended_at": "2026-01-02T00:00:00+00:00",
    "error": None,
    "datasets": [{**SOURCE["datasets"][0], "ended": True}],  # type: ignore[index]  # a list
}
TABLE = SOURCE | {"source": "shop/people", "kind": "postgres", "state": "running", "unread_s": 12.6}
SLOW = TABLE | {"failures": 0, "retry_at": None, "remedy": None, "error": "not read for 7200 s"}
LETTERS = {
    "subject": "Order",
    "source": "shop/orders",
    "sink": None,
    "kind": "unreadable",
    "rows": 4,
    "letters": 2,
    "newest_at": "2026-01-01T00:00:00+00:00",
    "newest_reason": "the message is not JSON",
    "not_replayable": "the message is no row",
}
SINK = {
    "sink": "hooks/rows",
    "kind": "http",
    "dataset": "Adult",
    "branches": ["copy", "main"],
    "state": "parked",
    "paused_by": None,
    "paused_at": None,
    "error": "it responds with status 503 [no]",
    "remedy": "if its credentials have changed: fennel-core connector rotate hooks",
    "failures": 3,
    "changes": 34,
    "behind": 12,
    "rewind": {"from": {"0": 7}, "whole": False, "ordered_at": "2026-01-01T00:00:00+00:00"},
    "replays": 3,
}
PAUSED = dict.fromkeys(SINK) | {
    "sink": "hooks/gone",
    "branches": [],
    "state": "paused",
    "paused_by": "ann",
    "paused_at": "2026-01-01T00:00:00+00:00",
    "failures": 0,
}
REWOUND = {"dataset": "Adult", "branches": ["main"], "from": {"0": 7, "1": 2}, "messages": 12}
Calls = list[tuple[str, str, dict[str, Any], dict[str, Any] | None]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Return what the commands send; each call has the response of its path."""
    sent: Calls = []
    counted = {"rows": 4, "letters": 2, "dry_run": False}
    responses: dict[str, Any] = {
        "/sources": {"sources": [SOURCE, OVER, TABLE, SLOW]},
        "/sinks": {"sinks": [SINK, PAUSED]},
        "/sinks/rewind": {"rewound": [REWOUND], "dry_run": False},
        "/sinks/pause": {},
        "/sinks/resume": {},
        "/sources/pause": {},
        "/sources/limit": {},
        "/sources/resume": {},
        "/sources/test": {
            "messages": 2,
            "datasets": [
                {
                    "dataset": "Order",
                    "branches": ["main"],
                    "fields": {"amount": "int"},
                    "messages": [
                        {"partition": 0, "offset": 3, "row": {"amount": 7}},
                        {"partition": 0, "offset": 4, "error": "it is not JSON"},
                        {"partition": 0, "offset": 5, "left_out": True},
                        {"partition": 0, "offset": 6, "deleted": {"id": 3}},
                    ],
                }
            ],
        },
        "/sources/rewind": {
            "moves": [{"partition": 0, "from": 41, "to": 2}],
            "read_again": 39,
            "skipped": 0,
        },
        "/dead_letters": {"dead_letters": [LETTERS]},
        "/dead_letters/rows": {
            "rows": [
                {
                    "subject": "Order",
                    "row": {"amount": "x"},
                    "hidden": False,
                    "reason": "no number",
                    "source_position": "Kafka topic `orders`[0] at 3",
                }
            ],
            "next": "t:0:3:1",
        },
        "/dead_letters/replay": counted
        | {
            "accepted": 3,
            "refused": 1,
            "left_out": 0,
            "ordered": 6,
            "not_replayable": [{"rows": 5, "subjects": ["Order"], "reason": "it is no row"}],
        },
        "/dead_letters/drop": counted,
    }

    @contextmanager
    def respond(method: str, url: str, **given: Any) -> Iterator[httpx.Response]:
        assert given["headers"] == {"Authorization": "Bearer t"}
        path = url.removeprefix("http://api/api/v1")
        sent.append((method, path, given["params"], given["json"]))
        yield httpx.Response(200, json=responses[path])

    monkeypatch.setattr(httpx, "stream", respond)
    return sent


def run(*words: str, answer: str | None = None) -> Result:
    group, *rest = words
    done = CliRunner().invoke(
        main, [group, "--url", "http://api", "--token", "t", *rest], input=answer
    )
    assert done.exit_code == 0, done.output
    return done


def test_sources_are_listed_with_rows_positions_and_the_next_attempt(calls: Calls) -> None:
    shown = run("source", "list", "--branch", "main").output
    assert calls == [("GET", "/sources", {"branch": "main"}, None)]
    for text in (
        "shop/orders  kafka  parked, not read to its end for 312 s  (branches: main)",
        "Order (append): 7 rows, 2 late, 1 dead letters",
        "next offsets by partition: 0: 41",
        "failed 3 times in a row, next attempt at 2026-01-01T00:00:00+00:00: no topic [orders]",
        "    limited to 12.5 rows per second by ann",
        "shop/over  kafka  ended  (branches: main)",
        "shop/people  postgres  running, read to its end 13 s ago  (branches: main)",
        "Order (append): 7 rows, 2 late, 1 dead letters, ended",
        "ended at 2026-01-02T00:00:00+00:00: nothing came for its idleness",
        "    if its credentials have changed: fennel-core connector rotate shop",
        "\n    not read for 7200 s\n",
    ):
        assert text in shown


def test_a_source_is_limited_and_the_limit_ended(calls: Calls) -> None:
    said = run("source", "limit", "shop/orders", "--rows-per-s", "0.5").output
    assert said == "Source shop/orders is limited to 0.5 rows per second.\n"
    assert run("source", "limit", "shop/orders", "--none").output.endswith("has no limit.\n")
    bodies = [body for _, _, _, body in calls]
    assert bodies == [
        {"source": "shop/orders", "rows_per_s": 0.5},
        {"source": "shop/orders", "rows_per_s": None},
    ]
    for words in ((), ("--rows-per-s", "1", "--none")):
        refused = CliRunner().invoke(main, ["source", "limit", "shop/orders", *words])
        assert refused.exit_code == 2
        assert "give one of --rows-per-s N and --none" in refused.output


def test_sinks_are_listed_and_ordered_by_name(calls: Calls) -> None:
    shown = run("sink", "list", "--branch", "main").output
    assert calls == [("GET", "/sinks", {"branch": "main"}, None)]
    first = "hooks/rows  http  parked, 34 changes written, 12 messages behind  of Adult"
    assert f"{first} (branches: copy, main)" in shown
    assert "failed 3 times in a row: it responds with status 503 [no]" in shown
    assert "    if its credentials have changed: fennel-core connector rotate hooks" in shown
    for order in ("pause", "resume"):
        assert "hooks/rows" in run("sink", order, "hooks/rows").output
        assert calls[-1] == ("POST", f"/sinks/{order}", {}, {"sink": "hooks/rows"})
    assert "hooks/gone  paused  no branch has it" in shown
    ordered = "to the offsets 0: 7, ordered at 2026-01-01T00:00:00+00:00,"
    assert f"    rewind {ordered} is not carried out yet" in shown
    assert "    3 dead letters are to be sent again" in shown
    assert shown.count("not carried out") == 1
    assert "paused by ann" in shown


def test_a_rewind_of_a_sink_shows_how_much_is_written_again(calls: Calls) -> None:
    done = run("sink", "rewind", "hooks/rows", "--to", "earliest", "--duplicates-rows").output
    assert "Writes up to 12 messages of Adult (branches: main) again" in done
    assert "from the offsets 0: 7, 1: 2 on" in done
    sent = {"sink": "hooks/rows", "to": "earliest", "duplicates_rows": True, "dry_run": False}
    assert calls == [("POST", "/sinks/rewind", {}, sent)]


def test_orders_about_a_source_name_it_and_show_what_they_do(calls: Calls) -> None:
    for order in ("pause", "resume"):
        assert "shop/orders" in run("source", order, "shop/orders").output
        assert calls[-1] == ("POST", f"/sources/{order}", {}, {"source": "shop/orders"})
    tried = run("source", "test", "shop/orders").output
    for text in ('[0] at 3: row {"amount": 7}', "[0] at 4: dead letter: it is not", "left out"):
        assert text in tried
    moved = run("source", "rewind", "shop/orders", "--to", "0:2", "--duplicates-rows").output
    assert "from 41 to 2" in moved
    assert "39 messages are read again, 0 are skipped" in moved
    assert calls[-1][3] == {
        "source": "shop/orders",
        "to": "0:2",
        "duplicates_rows": True,
        "skips_messages": False,
        "dry_run": False,
    }


def test_dead_letters_are_listed_shown_and_replayed(calls: Calls) -> None:
    listed = run("deadletters", "list", "--dataset", "Order").output
    assert "4 rows in 2 letters" in listed
    assert "cannot be replayed: the message is no row" in listed
    shown = run("deadletters", "show", "--source", "shop/orders", "-n", "1").output
    assert calls[-1][2] == {"source": "shop/orders", "n": 1}
    assert "no number (Kafka topic `orders`[0] at 3)" in shown
    assert "--after t:0:3:1" in shown
    replayed = run("deadletters", "replay", "--reason", "number", "--dry-run").output
    assert calls[-1][3] == {"reason": "number", "dry_run": True}
    assert "Would replay 4 rows of 2 letters: 3 accepted, 1 refused again" in replayed
    assert "Not replayed: 5 rows of Order: it is no row." in replayed
    assert "Would order that sinks send 6 changes again." in replayed
    run("deadletters", "list", "--sink", "hooks/rows")
    assert calls[-1][2] == {"sink": "hooks/rows"}


def test_letters_are_dropped_after_a_confirmation_with_numbers(calls: Calls) -> None:
    shown = run("deadletters", "drop", "--all", answer="y\n").output
    assert "Drop 4 rows of 2 letters?" in shown
    assert [call[3] for call in calls] == [
        {"all": True, "dry_run": True},
        {"all": True, "dry_run": False},
    ]
    run("deadletters", "drop", "--since", "2026-01-01", "--yes")
    assert calls[-1][3] == {"since": "2026-01-01", "all": False, "dry_run": False}


def test_help_names_every_order() -> None:
    for group, orders in (
        ("source", ("list", "pause", "resume", "test", "rewind")),
        ("sink", ("list", "pause", "resume", "rewind")),
        ("deadletters", ("list", "show", "replay", "drop")),
    ):
        shown = CliRunner().invoke(main, [group, "--help"]).output
        assert all(f"\n  {order} " in shown for order in orders), shown
