"""The command line: help worth reading, one sentence for each mistake, never a traceback."""

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import click
import pytest
from click.testing import CliRunner

from fennel_core.apps.cli import main


def commands(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENNEL_DATA_DIR", str(tmp_path / "data"))


def run(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, words)
    return done.exit_code, done.stdout, done.stderr


def test_the_promised_commands_exist() -> None:
    names = {" ".join(path) for path, _ in commands(main)}
    assert names >= {
        "up",
        "down",
        "status",
        "logs",
        "env",
        "workspace create",
        "workspace delete",
        "workspace list",
        "demo",
        "clean",
    }
    assert names >= {"snapshot", "recover", "drill"}


def test_each_command_says_what_it_does_and_each_option_what_for() -> None:
    for path, command in commands(main):
        assert len(command.help or "") > 20, path
        for option in (p for p in command.params if isinstance(p, click.Option)):
            assert len(option.help or "") > 5, (path, option.name)


@pytest.mark.parametrize("path", [path for path, _ in commands(main)])
def test_help_can_be_asked_of_every_command(path: tuple[str, ...]) -> None:
    code, shown, _ = run(*path, "--help")
    assert code == 0
    assert "Usage:" in shown


@pytest.mark.parametrize("words", [("snapshot",), ("recover", "--workspace", "shop"), ("drill",)])
def test_what_needs_the_platform_says_so_in_one_sentence_when_it_is_down(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FENNEL_POSTGRES_PORT", "1")
    code, _, said = run(*words)
    assert code == 1
    assert said.startswith("The platform's database does not answer (")
    assert said.rstrip().endswith("is the platform up?")
    assert said.count("\n") == 1


def test_an_unknown_part_is_answered_with_the_known_ones() -> None:
    code, _, said = run("up", "--only", "zookeeper")
    assert code == 1
    assert said.startswith("There is no part called zookeeper; there are airflow-api, ")
    assert said.count("\n") == 1


def test_a_wrong_setting_is_named_as_the_variable_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENNEL_ENGINE_SLOTS", "many")
    code, _, said = run("status")
    assert code == 1
    assert said.startswith("FENNEL_ENGINE_SLOTS: Input should be a valid integer")


def test_a_folder_that_cannot_be_made_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENNEL_DATA_DIR", "/proc/nowhere")
    code, _, said = run("env")
    assert code == 1
    assert said == "No such file or directory: /proc/nowhere\n"


def test_down_with_nothing_running_says_so() -> None:
    assert run("down")[:2] == (0, "Nothing was running.\n")


def test_logs_before_the_first_start_say_so() -> None:
    code, _, said = run("logs")
    assert (code, said) == (1, "There is no log yet: nothing was started.\n")


def test_status_of_a_stopped_platform_is_not_success() -> None:
    code, shown, _ = run("status", "--json")
    assert code == 1
    assert {row["state"] for row in json.loads(shown)["services"]} == {"stopped"}


def test_settings_lists_each_variable_with_its_reason() -> None:
    _, shown, _ = run("settings")
    assert "FENNEL_LEASE_MS=10000\n    Life of a slot's lease, ms." in shown
    assert "FENNEL_ADMIN_TOKEN=(generated)" in shown


class Definition(http.server.BaseHTTPRequestHandler):
    """Stands in for the definition server's workspace calls; remembers what it was asked."""

    asked: ClassVar[list[tuple[str, str, str | None, bytes]]] = []

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.asked.append((self.command, self.path, self.headers["Authorization"], body))
        known = self.path == "/api/v1/workspaces"
        said = {
            "GET": b'{"workspaces": [{"name": "one"}, {"name": "two"}]}',
            "POST": b'{"name": "new", "token": "t0k3n"}',
        }
        self.send_response(200 if known else 404)
        self.end_headers()
        self.wfile.write(said[self.command] if known else b"workspace `x` does not exist")

    do_GET = do_POST = do_DELETE = answer

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def definition(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[list[tuple[str, str, str | None, bytes]]]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Definition)
    monkeypatch.setenv("FENNEL_DEFINITION_PORT", str(server.server_address[1]))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Definition.asked.clear()
    yield Definition.asked
    server.shutdown()
    server.server_close()


def test_workspaces_are_listed_one_per_line_with_the_administrators_token(
    definition: list[tuple[str, str, str | None, bytes]], tmp_path: Path
) -> None:
    assert run("workspace", "list")[:2] == (0, "one\ntwo\n")
    token = (tmp_path / "data" / "secrets" / "admin_token").read_text()
    assert definition == [("GET", "/api/v1/workspaces", f"Bearer {token}", b"")]


def test_a_new_workspace_prints_its_token_as_an_export_line(
    definition: list[tuple[str, str, str | None, bytes]],
) -> None:
    assert run("workspace", "create", "new")[:2] == (0, "export FENNEL_TOKEN=t0k3n\n")
    assert definition[0][3] == b'{"name": "new"}'


def test_a_refusal_is_shown_in_the_servers_words(
    definition: list[tuple[str, str, str | None, bytes]],
) -> None:
    code, _, said = run("workspace", "delete", "x", "--yes")
    assert (code, said) == (1, "workspace `x` does not exist\n")


def test_a_definition_server_that_is_down_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENNEL_DEFINITION_PORT", "1")
    code, _, said = run("workspace", "list")
    assert code == 1
    assert said.startswith("The definition server at http://127.0.0.1:1 does not answer")
    assert said.endswith("is the platform up?\n")
