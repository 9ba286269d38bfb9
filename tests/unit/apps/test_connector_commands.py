"""`fennel-core connector` over a simulated API: secrets are no words of commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fennel_core.apps import connector_commands
from fennel_core.apps.cli import main

ROW = {
    "connector": "shop",
    "kind": "kafka",
    "address": "broker:9092",
    "properties": {"bootstrap_servers": "broker:9092", "sasl_plain_password": "(set)"},
    "changes": 2,
    "changed_at": "2026-01-01T00:00:00+00:00",
    "changed_by": "token 1",
    "used_by": ["the source of dataset `Order` in branch `main`"],
}
DONE = {"connector": "shop", "checked": ROW["used_by"], "used_by": ROW["used_by"]}
Sent = list[tuple[str, str, dict[str, Any] | None]]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    found: Sent = []

    def called(
        caller: object, method: str, path: str, asked: object = None, body: Any = None
    ) -> dict[str, Any]:
        del caller, asked
        found.append((method, path, body))
        rows = {"/connectors": {"connectors": [ROW]}, "/connectors/a%2Fb": ROW}
        return rows.get(path, DONE)

    monkeypatch.setattr(connector_commands, "called", called)
    return found


def run(*words: str, given: str | None = None) -> Result:
    return CliRunner().invoke(main, ["connector", "--token", "t", *words], input=given)


@pytest.mark.parametrize("place", ["file", "env", "stdin"])
def test_a_secret_comes_from_a_file_the_environment_or_the_standard_input(
    sent: Sent, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "word").write_text("a word\n")
    monkeypatch.setenv("SHOP_WORD", "a word")
    source = {"file": f"file:{tmp_path / 'word'}", "env": "env:SHOP_WORD", "stdin": "-"}[place]
    words = ("--set", "security_protocol=SASL_SSL", "--secret", f"sasl_plain_password={source}")
    done = run("add", "shop", "kafka", *words, given="a word\n")
    assert done.exit_code == 0, done.output
    assert "a word" not in done.output
    [(method, path, body)] = sent
    assert (method, path) == ("POST", "/connectors/add")
    assert body == {
        "connector": "shop",
        "kind": "kafka",
        "properties": {"security_protocol": "SASL_SSL", "sasl_plain_password": "a word"},
        "replace": False,
        "moved": False,
        "unchecked": False,
    }


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--set", "password=abc"), "--secret password=file:PATH"),
        (("--set", "aws_secret_access_key=abc"), "is a secret"),
        (("--secret", "password=abc"), "comes from file:PATH, env:VARIABLE or -"),
        (("--secret", "password=env:NO_SUCH_WORD"), "no variable `NO_SUCH_WORD`"),
        (("--secret", "password=file:/no/such/abc"), "cannot be read"),
        (("--secret", "password=env:EMPTY_WORD"), "is empty"),
        (("--set", "username"), "`username` needs a value"),
        (("--set", "username=a", "--set", "username=b"), "is given twice"),
    ],
)
def test_what_is_no_property_is_refused_before_anything_is_sent(
    sent: Sent, words: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMPTY_WORD", "")
    done = run("rotate", "shop", *words)
    assert done.exit_code == 1
    assert says in done.output
    assert not sent
    if "/no/such" not in words[1]:
        assert "abc" not in done.output


def test_a_rotation_says_what_was_reached(sent: Sent) -> None:
    done = run("rotate", "shop", "--set", "username=ann")
    assert sent[0][2] == {
        "connector": "shop",
        "properties": {"username": "ann"},
        "unchecked": False,
    }
    assert "reached: the source of dataset `Order` in branch `main`" in done.output


def test_connectors_are_listed_shown_tested_and_removed(sent: Sent) -> None:
    listed = run("list").output
    assert "shop  kafka  broker:9092  changed 2026-01-01T00:00:00+00:00 by token 1" in listed
    shown = run("show", "a/b").output
    assert "sasl_plain_password: (set)" in shown
    assert "used by the source of dataset `Order`" in shown
    assert "can be used" in run("test", "shop").output
    assert "is removed" in run("rm", "shop").output
    assert [path for _, path, _ in sent[2:]] == ["/connectors/test", "/connectors/remove"]
