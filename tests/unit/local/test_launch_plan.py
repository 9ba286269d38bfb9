"""Decisions of `up` and `down`, and the guarantees of the service table they rely on."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
from pydantic import SecretStr

from fennel_core.apps.errors import UnknownService
from fennel_core.apps.local import kafka_users
from fennel_core.apps.local.file_layout import FileLayout
from fennel_core.apps.local.host_environment import HostEnvironment
from fennel_core.apps.local.launch_plan import (
    LaunchAction,
    RunningService,
    launch_action,
    select_services,
    stop_waves,
    with_dependencies,
)
from fennel_core.apps.local.platform import local_settings
from fennel_core.apps.local.platform_keys import ensure_keys
from fennel_core.apps.local.readiness import HttpOk
from fennel_core.apps.local.services import (
    FENNEL,
    INFRA,
    WATCHDOG,
    Port,
    Service,
    process_env,
    service_table,
)
from fennel_core.apps.local.setup_steps import PlatformContext
from fennel_core.ledger.kafka_access import ACCESS, user_of
from fennel_core.settings.model import Orchestrator, Settings


def service(name: str, *needs: str, group: str = INFRA) -> Service:
    return Service(
        name,
        name,
        group,
        ("true",),
        MappingProxyType({}),
        HttpOk("http://127.0.0.1:1/"),
        needs=needs,
    )


@pytest.fixture
def context(tmp_path: Path) -> PlatformContext:
    layout = FileLayout(root=tmp_path, data=tmp_path / "data")
    layout.make()
    keys = ensure_keys(layout.secrets)
    return PlatformContext(
        local_settings(Settings(), layout, keys), layout, keys, HostEnvironment("java", (), 0)
    )


def test_a_service_that_is_not_running_is_started() -> None:
    assert launch_action(service("a"), None) is LaunchAction.START


def test_a_service_that_runs_with_the_same_settings_is_kept() -> None:
    assert launch_action(service("a"), RunningService(service("a").digest)) is LaunchAction.KEEP


def test_a_service_that_runs_with_other_settings_is_restarted() -> None:
    assert launch_action(service("a"), RunningService("another")) is LaunchAction.RESTART


def test_each_change_of_command_environment_or_port_changes_the_digest() -> None:
    one = Service("a", "a", INFRA, ("x",), MappingProxyType({"A": "1"}), HttpOk("http://h/"))
    other_command = Service(
        "a", "a", INFRA, ("y",), MappingProxyType({"A": "1"}), HttpOk("http://h/")
    )
    other_env = Service("a", "a", INFRA, ("x",), MappingProxyType({"A": "2"}), HttpOk("http://h/"))
    other_port = replace(one, ports=(Port(1, "A_PORT", "127.0.0.1"),))
    assert len({each.digest for each in (one, other_command, other_env, other_port)}) == 4


def test_a_group_selects_its_services_and_no_name_selects_all() -> None:
    services = (service("a"), service("b", group=FENNEL))
    assert select_services(services, ("infra",)) == services[:1]
    assert select_services(services, ()) == services


def test_an_unknown_service_is_refused_with_the_valid_names() -> None:
    with pytest.raises(
        UnknownService, match=r"unknown service `zookeeper`; valid names: a, .*infra"
    ):
        select_services((service("a"),), ("zookeeper",))


def test_dependencies_are_followed_transitively() -> None:
    services = (service("a"), service("b", "a"), service("c", "b"), service("d"))
    assert [p.name for p in with_dependencies(services, services[2:3])] == ["a", "b", "c"]


def test_a_service_is_stopped_after_those_that_need_it(context: PlatformContext) -> None:
    services = service_table(context)
    waves = stop_waves(services)
    when = {p.name: i for i, wave in enumerate(waves) for p in wave}
    assert sorted(when) == sorted(p.name for p in services)
    assert all(when[p.name] < when[need] for p in services for need in p.needs)


def test_every_dependency_is_above_its_service_in_the_table(
    context: PlatformContext, tmp_path: Path
) -> None:
    for each in (context, on_cluster(tmp_path)):
        seen: set[str] = set()
        for row in service_table(each):
            assert set(row.needs) <= seen, row.name
            seen.add(row.name)


def test_no_two_services_share_a_port_and_each_port_has_a_variable(
    context: PlatformContext,
) -> None:
    ports = [port for row in service_table(context) for port in row.ports]
    assert len({port.number for port in ports}) == len(ports) == 12
    variables = {f"FENNEL_{name.upper()}" for name in Settings.model_fields}
    assert {port.variable for port in ports} <= variables


def test_more_engines_are_rows_with_a_name_and_a_port_of_their_own(
    context: PlatformContext,
) -> None:
    three = replace(context, settings=context.settings.model_copy(update={"engines": 3}))
    rows = [row for row in service_table(three) if row.name.startswith("engine")]
    assert [(row.name, row.port, row.env.get("FENNEL_ENGINE")) for row in rows] == [
        ("engine", 7403, None),
        ("engine-2", 7423, "engine-2"),
        ("engine-3", 7443, "engine-3"),
    ]
    assert {row.command for row in rows} == {rows[0].command}
    assert rows[1].env["FENNEL_ENGINE_PORT"] == "7423"


def test_the_inline_orchestrator_needs_no_airflow(context: PlatformContext) -> None:
    inline = PlatformContext(
        context.settings.model_copy(update={"orchestrator": Orchestrator.INLINE}),
        context.layout,
        context.keys,
        context.host,
    )
    assert not [row.name for row in service_table(inline) if row.name.startswith("airflow")]


def test_postgres_is_stopped_without_waiting_for_clients(
    context: PlatformContext,
) -> None:
    assert {row.name: row.stop_signal for row in service_table(context)}[
        "postgres"
    ] is signal.SIGINT


def test_executors_are_started_without_passwords(context: PlatformContext) -> None:
    executors = next(row for row in service_table(context) if row.name == "executors")
    secrets = [
        context.keys.postgres_password,
        context.keys.admin_token,
        context.keys.s3_secret_key,
        context.keys.users_secrets_key,
    ]
    assert not [
        value for value in executors.env.values() if any(secret in value for secret in secrets)
    ]


def test_each_service_has_only_the_secrets_that_it_needs(context: PlatformContext) -> None:
    keys = context.keys
    values = {
        "postgres": keys.postgres_password,
        "s3": keys.s3_secret_key,
        "airflow": keys.airflow_password,
        "admin": keys.admin_token,
        "key": "users_secrets_key",
    }
    found = {
        row.name: {
            name
            for name, secret in values.items()
            for variable, value in row.env.items()
            if secret in value and not variable.startswith("AIRFLOW__")
        }
        for row in service_table(context)
    }
    assert {name: secrets for name, secrets in found.items() if secrets} == {
        "definition": {"postgres", "s3", "airflow", "key"},
        "ingest": {"postgres", "key"},
        "engine": {"postgres", "s3", "key"},
        "query": {"postgres", "key"},
        "history": {"postgres", "s3"},
        "sources": {"postgres", "key", "s3"},
        "airflow-api": {"postgres"},
        "airflow-scheduler": {"postgres", "s3", "airflow", "key"},
    }


def test_servers_know_the_administrators_token_by_its_digest(
    context: PlatformContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    (query,) = [row for row in service_table(context) if row.name == "query"]
    for name, value in query.env.items():
        monkeypatch.setenv(name, value)
    settings = Settings()
    assert settings.admin_token.get_secret_value() == ""
    assert settings.admin_digest == context.settings.admin_digest is not None


def test_what_services_write_is_readable_by_their_owner_only(context: PlatformContext) -> None:
    others = {row.name for row in service_table(context) if row.umask != 0o077}
    assert others == {"executors"}, "user code runs as other users"


def test_no_command_line_contains_a_password(context: PlatformContext) -> None:
    words = [word for row in service_table(context) for word in row.command]
    assert not [
        word
        for word in words
        for name in ("postgres_password", "s3_secret_key", "admin_token")
        if getattr(context.keys, name) in word
    ]


def on_cluster(folder: Path, **changed: str) -> PlatformContext:
    (folder / "kafka").mkdir(exist_ok=True)
    for component in ACCESS:
        (folder / "kafka" / user_of(component)).write_text(f"password-of-{component}\n")
    return on_cluster_of(folder, **changed)


def on_cluster_of(folder: Path, **changed: str) -> PlatformContext:
    cluster = {"kafka_bootstrap": "kafka-1:9093", "kafka_security": "SASL_SSL"}
    given = Settings.model_validate({**cluster, "kafka_passwords_dir": folder / "kafka", **changed})
    layout = FileLayout(root=folder, data=folder / "data")
    layout.make()
    keys = ensure_keys(layout.secrets)
    settings = local_settings(given, layout, keys)
    return PlatformContext(settings, layout, keys, HostEnvironment("java", (), 0))


def test_on_a_cluster_each_service_has_the_kafka_user_of_its_component(tmp_path: Path) -> None:
    rows = service_table(on_cluster(tmp_path, engines="2"))
    assert "kafka" not in {row.name for row in rows}
    users = {
        row.name: (row.env.get("FENNEL_KAFKA_USER"), row.env["FENNEL_KAFKA_PASSWORD"])
        for row in rows
        if "FENNEL_KAFKA_PASSWORD" in row.env
    }
    component = {"engine-2": "engine", "airflow-scheduler": "definition"}
    assert users == {
        name: (f"fennel-{component.get(name, name)}", f"password-of-{component.get(name, name)}")
        for name in users
    }
    assert {component.get(name, name) for name in users} == set(ACCESS)
    own = [row.env for row in rows if row.name in users]
    assert {env["FENNEL_KAFKA_BOOTSTRAP"] for env in own} == {"kafka-1:9093"}


def test_commands_on_a_cluster_use_the_user_that_has_a_password(tmp_path: Path) -> None:
    assert on_cluster(tmp_path).settings.kafka_user == "fennel-definition"
    assert on_cluster(tmp_path, kafka_user="ann").settings.kafka_user == "fennel-definition"
    login = {"kafka_user": "ann", "kafka_password": "x"}
    given = on_cluster(tmp_path, **login).settings
    assert (given.kafka_user, given.kafka_password.get_secret_value()) == ("ann", "x")


@pytest.mark.parametrize("login", [{}, {"kafka_user": "ann", "kafka_password": "word-of-ann"}])
def test_the_watchdog_starts_services_as_up_does_and_has_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, login: dict[str, str]
) -> None:
    context = on_cluster(tmp_path, **login)
    rows = service_table(context)
    assert "FENNEL_KAFKA_PASSWORD" not in rows[-1].env
    assert not [value for value in rows[-1].env.values() if "word-of-" in value]
    for name in [name for name in os.environ if name.startswith("FENNEL_")]:
        monkeypatch.delenv(name)
    for name, value in rows[-1].env.items():
        monkeypatch.setenv(name, value)
    settings = local_settings(Settings(), context.layout, context.keys)
    made = service_table(replace(context, settings=settings))
    assert [row.digest for row in made] == [row.digest for row in rows]


def test_services_without_kafka_and_with_the_bundled_broker_have_no_user(
    context: PlatformContext, tmp_path: Path
) -> None:
    login = {"kafka_user": "ann", "kafka_password": SecretStr("x")}
    bundled = replace(context, settings=context.settings.model_copy(update=login))
    for row in service_table(bundled):
        assert row.env.get("FENNEL_KAFKA_USER", "") == "", row.name
        assert row.env.get("FENNEL_KAFKA_PASSWORD", "") == "", row.name
    users = {
        row.name: row.env.get("FENNEL_KAFKA_USER") for row in service_table(on_cluster(tmp_path))
    }
    assert (users["airflow-api"], users["airflow-dags"], users[WATCHDOG]) == ("", "", "")


def test_a_new_password_restarts_the_watchdog_too(tmp_path: Path) -> None:
    context = on_cluster(tmp_path)
    before = {row.name: row.digest for row in service_table(context)}
    (tmp_path / "kafka" / "fennel-engine").write_text("another")
    after = {row.name: row.digest for row in service_table(context)}
    assert {name for name in before if before[name] != after[name]} == {"engine", WATCHDOG}


def test_a_cluster_without_users_or_passwords_is_a_problem(tmp_path: Path) -> None:
    def found(context: PlatformContext, *services: str) -> str:
        return " | ".join(kafka_users.problems(context.settings, services))

    plain = found(on_cluster(tmp_path, kafka_security="PLAINTEXT"))
    assert "FENNEL_KAFKA_SECURITY is PLAINTEXT. Set it to" in plain
    assert "no effect on containers" in found(on_cluster(tmp_path, reach_by_name="true"))
    context = on_cluster(tmp_path)
    assert not found(context, *(row.name for row in service_table(context)))
    (tmp_path / "kafka" / "fennel-engine").unlink()
    (tmp_path / "kafka" / "fennel-query").write_text("\n")
    missing = found(context, "engine", "query", "ingest", "executors")
    assert missing.count("cannot be read") == 2
    assert "`fennel-engine` cannot be read (No such file" in missing
    assert "`fennel-query` cannot be read (it is empty: " in missing
    assert "kafka-access --passwords" in missing
    (tmp_path / "kafka" / "fennel-definition").unlink()
    assert "`fennel-definition`" in found(on_cluster_of(tmp_path), "ingest")
    login = {"kafka_user": "ann", "kafka_password": "x"}
    assert not found(on_cluster_of(tmp_path, **login), "ingest")


def test_settings_survive_the_environment(
    context: PlatformContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = context.settings.model_copy(update={"offline_shared_buckets": ("one", "two")})
    for name, value in process_env(settings).items():
        monkeypatch.setenv(name, value)
    assert Settings().model_dump() == settings.model_dump()
    assert hash(Settings()), "clients are cached by their settings"
