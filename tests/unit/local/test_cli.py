"""The command line: complete help, one message per mistake, never a traceback."""

import http.server
import json
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import click
import pytest
from click.testing import CliRunner

import fennel_core
from fennel_core.apps.admin_commands import ROLES
from fennel_core.apps.cli import main
from fennel_core.apps.local.host_environment import inspect_host
from fennel_core.connections.roles import Role
from tests.support.platform_settings import SECRETS


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


def test_the_documented_commands_exist() -> None:
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
        "token create",
        "token list",
        "token rotate",
        "token revoke",
        "demo",
        "clean",
    }
    assert names >= {"snapshot", "recover", "drill", "integrity", "maintain-history"}


def test_each_command_and_option_has_a_help_text() -> None:
    for path, command in commands(main):
        assert len(command.help or "") > 20, path
        for option in (p for p in command.params if isinstance(p, click.Option)):
            assert len(option.help or "") > 5, (path, option.name)


@pytest.mark.parametrize("path", [path for path, _ in commands(main)])
def test_every_command_has_help(path: tuple[str, ...]) -> None:
    code, shown, _ = run(*path, "--help")
    assert code == 0
    assert "Usage:" in shown


@pytest.mark.parametrize(
    "words",
    [
        ("snapshot",),
        ("recover", "--workspace", "shop"),
        ("drill",),
        ("integrity",),
        ("maintain-history",),
    ],
)
def test_commands_report_that_the_platform_is_down_in_one_line(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FENNEL_POSTGRES_PORT", "1")
    code, _, message = run(*words)
    assert code == 1
    assert message.startswith("The platform's database is unavailable (")
    assert message.rstrip().endswith("Start the platform with `fennel-core up`.")
    assert message.count("\n") == 1


def test_an_unknown_service_is_refused_with_the_valid_names() -> None:
    code, _, message = run("up", "--only", "zookeeper")
    assert code == 1
    assert message.startswith("unknown service `zookeeper`; valid names: airflow-api, ")
    assert message.count("\n") == 1


def test_an_invalid_setting_is_named_as_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENNEL_ENGINE_SLOTS", "many")
    code, _, message = run("status")
    assert code == 1
    assert message.startswith("FENNEL_ENGINE_SLOTS: Input should be a valid integer")


def test_a_folder_that_cannot_be_created_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENNEL_DATA_DIR", "/proc/nowhere")
    code, _, message = run("env")
    assert code == 1
    assert message == "No such file or directory: /proc/nowhere\n"


def test_env_prints_passwords_only_if_they_are_named(tmp_path: Path) -> None:
    secrets = tmp_path / "data" / "secrets"
    _, shown, _ = run("env", "--all")
    assert "export FENNEL_S3_BUCKET=fennel\n" in shown
    assert "export FENNEL_URL=" in shown
    generated = [file.read_text() for file in secrets.iterdir()]
    assert len(generated) > 5
    assert not [value for value in generated if value in shown]
    token = (secrets / "admin_token").read_text()
    named = run("env", "FENNEL_ADMIN_TOKEN")[1]
    assert named.strip("\n").replace("'", "") == f"export FENNEL_ADMIN_TOKEN={token}"
    everything = run("env", "--all", *SECRETS)[1]
    assert all(f"export {name}=" in everything for name in SECRETS)
    code, _, message = run("env", "FENNEL_NO_SUCH")
    assert (code, message.partition(" ")[0]) == (1, "FENNEL_NO_SUCH")


def test_the_folder_of_all_data_is_its_owners_only(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "logs").mkdir(parents=True)
    data.chmod(0o755)
    run("env")
    private = 0o700 if inspect_host().owner_uid == os.getuid() else 0o711
    assert stat.S_IMODE(data.stat().st_mode) == private
    assert stat.S_IMODE((data / "logs").stat().st_mode) == 0o700
    assert stat.S_IMODE((data / "secrets" / "admin_token").stat().st_mode) == 0o600


def test_down_reports_that_nothing_was_running() -> None:
    assert run("down")[:2] == (0, "Nothing was running.\n")


def test_logs_before_the_first_start_name_the_command_to_run() -> None:
    code, _, message = run("logs")
    assert (code, message) == (1, "There is no log yet. Run `fennel-core up` first.\n")


def test_status_of_a_stopped_platform_is_not_success() -> None:
    code, shown, _ = run("status", "--json")
    assert code == 1
    assert {row["state"] for row in json.loads(shown)["services"]} == {"stopped"}


def test_a_missing_password_of_a_kafka_user_stops_up_but_neither_down_nor_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FENNEL_KAFKA_SECURITY", "SASL_SSL")
    monkeypatch.setenv("FENNEL_KAFKA_PASSWORDS_DIR", str(tmp_path / "kafka"))
    assert run("down")[:2] == (0, "Nothing was running.\n")
    code, shown, _ = run("status", "--json")
    assert code == 1
    why = {row["service"]: row["why"] for row in json.loads(shown)["services"]}
    assert str(tmp_path / "kafka" / "fennel-sources") in why["sources"]
    assert (why["postgres"], why["watchdog"]) == ("", "")
    for words in (("up", "--only", "sources"), ("restart", "sources"), ("snapshot",)):
        code, _, message = run(*words)
        assert code == 1
        assert "`fennel-definition` cannot be read" in message
        assert "fennel-core kafka-access --passwords" in message
        assert ("`fennel-sources` cannot be read" in message) is (words != ("snapshot",))


def test_settings_lists_each_variable_with_its_reason() -> None:
    _, shown, _ = run("settings")
    assert "FENNEL_LEASE_MS=10000\n    Lifetime of a slot's lease, ms." in shown
    assert "FENNEL_ADMIN_TOKEN=(generated)" in shown


RETAINED = json.dumps(
    {
        "retained": [
            {
                "workspace": workspace,
                "kind": kind,
                "title": title,
                "asset": asset,
                "destroyed_after": ends,
            }
            for workspace, kind, title, asset, ends in (
                ("shop", "topic", "Order", "shop.topic.a.1", "2026-01-02T00:00:00+00:00"),
                ("shop", "raw", "door/orders", "shop.raw.b.1", None),
                ("other", "topic", "User", "other.topic.c.1", None),
            )
        ]
    }
).encode()


WORKSPACES = b'{"workspaces": [{"name": "one"}, {"name": "two"}]}'
TOKENS = json.dumps(
    {
        "tokens": [
            {
                "id": "7",
                "name": "",
                "role": "log",
                "is_read_token": False,
                "created_at": "then",
                "expires_at": None,
                "last_used_at": None,
            }
        ]
    }
).encode()


class Definition(http.server.BaseHTTPRequestHandler):
    """Fake of the definition server's workspace calls; records every request."""

    requests: ClassVar[list[tuple[str, str, str | None, bytes]]] = []

    def respond(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.requests.append((self.command, self.path, self.headers["Authorization"], body))
        operations = {
            "/api/v1/operations/retained": RETAINED,
            "/api/v1/operations/purge": b'{"purged": ["shop.topic.a.1"]}',
        }
        about_tokens = "/tokens" in self.path
        known = self.path == "/api/v1/workspaces" or self.path in operations or about_tokens
        responses = {
            "GET": TOKENS if about_tokens else WORKSPACES,
            "POST": b'{"id": "7", "name": "new", "token": "t0k3n", "expires_at": null}',
            "DELETE": b"{}",
        }
        self.send_response(200 if known else 404)
        self.end_headers()
        found = operations.get(self.path) or responses.get(self.command, b"")
        self.wfile.write(found if known else b"workspace `x` does not exist")

    do_GET = do_POST = do_DELETE = respond

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def definition(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[list[tuple[str, str, str | None, bytes]]]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Definition)
    monkeypatch.setenv("FENNEL_DEFINITION_PORT", str(server.server_address[1]))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Definition.requests.clear()
    yield Definition.requests
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
    assert definition[0][3] == b'{"name":"new"}'


OWNERS = (
    (("--workspace", "shop"), "/api/v1/workspaces/shop/tokens"),
    (("--installation",), "/api/v1/operations/tokens"),
)


@pytest.mark.parametrize(("owner", "path"), OWNERS)
def test_tokens_of_a_workspace_and_of_the_installation_are_managed(
    definition: list[tuple[str, str, str | None, bytes]], owner: tuple[str, ...], path: str
) -> None:
    words = ("--role", "log", "--name", "door", "--days", "2")
    code, shown, _ = run("token", "create", *owner, *words)
    assert (code, shown.splitlines()[-1]) == (0, "export FENNEL_TOKEN=t0k3n")
    assert run("token", "list", *owner)[1].startswith("7  log  (no name)  created then")
    assert run("token", "rotate", "7", *owner, "--overlap-hours", "1")[0] == 0
    assert run("token", "revoke", "7", *owner)[1] == "Revoked token 7.\n"
    sent = [(method, where, body) for method, where, _, body in definition]
    assert sent == [
        ("POST", path, b'{"name":"door","role":"log","lifetime_s":172800.0}'),
        ("GET", path, b""),
        ("POST", f"{path}/7/rotate", b'{"overlap_s":3600.0}'),
        ("DELETE", f"{path}/7", b""),
    ]


@pytest.mark.parametrize("owner", [(), ("--workspace", "shop", "--installation")])
def test_a_token_command_needs_exactly_one_owner(owner: tuple[str, ...]) -> None:
    code, _, message = run("token", "list", *owner)
    assert code == 1
    assert message == "Name the owner of the tokens: --workspace NAME, or --installation.\n"


def test_the_roles_of_the_command_line_are_those_of_the_servers() -> None:
    assert tuple(Role) == ROLES


def test_a_refusal_is_shown_with_the_servers_message(
    definition: list[tuple[str, str, str | None, bytes]],
) -> None:
    code, _, message = run("workspace", "delete", "x", "--yes")
    assert (code, message) == (1, "workspace `x` does not exist\n")


def test_a_purge_shows_the_retained_assets_of_its_workspace_and_sends_exactly_these(
    definition: list[tuple[str, str, str | None, bytes]],
) -> None:
    code, shown, _ = run("purge", "--workspace", "shop", "--yes")
    assert (code, shown.splitlines()) == (
        0,
        [
            "topic of Order (shop.topic.a.1), retained until 2026-01-02T00:00:00+00:00",
            "raw of door/orders (shop.raw.b.1), retained until the loss of its rows is confirmed",
            "Assets that are being destroyed: 1 of 2.",
        ],
    )
    assert definition[-1][1] == "/api/v1/operations/purge"
    assert json.loads(definition[-1][3]) == {
        "workspace": "shop",
        "assets": ["shop.topic.a.1", "shop.raw.b.1"],
        "allow_data_loss": False,
    }
    run("purge", "--workspace", "shop", "--yes", "--allow-data-loss")
    assert json.loads(definition[-1][3])["allow_data_loss"] is True


def test_a_purge_asks_first_and_does_nothing_without_an_answer(
    definition: list[tuple[str, str, str | None, bytes]],
) -> None:
    assert run("purge", "--workspace", "shop")[0] == 1
    assert run("purge", "--workspace", "empty")[:2] == (
        0,
        "Nothing of workspace empty is retained.\n",
    )
    assert {request[0] for request in definition} == {"GET"}


def test_a_definition_server_that_is_down_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENNEL_DEFINITION_PORT", "1")
    code, _, message = run("workspace", "list")
    assert code == 1
    assert message.startswith("The definition server at http://127.0.0.1:1 does not respond")
    assert message.endswith("Is the platform up?\n")


def test_the_version_is_the_one_of_the_package() -> None:
    assert run("--version")[:2] == (0, f"fennel-core, version {fennel_core.__version__}\n")
