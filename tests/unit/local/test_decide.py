"""What `up` and `down` decide, and what the process table promises them."""

import signal
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from fennel_core.apps.local.decide import (
    Decision,
    Running,
    UnknownPartError,
    chosen,
    decide,
    stopping_waves,
    with_needs,
)
from fennel_core.apps.local.health import HttpAnswers
from fennel_core.apps.local.host import Host
from fennel_core.apps.local.keys import ensure_keys
from fennel_core.apps.local.layout import Layout
from fennel_core.apps.local.parts import FENNEL, INFRA, Part, Port, process_env, table
from fennel_core.apps.local.platform import local_settings
from fennel_core.apps.local.steps import Machine
from fennel_core.settings.model import Orchestrator, Settings


def part(name: str, *needs: str, group: str = INFRA) -> Part:
    return Part(
        name,
        name,
        group,
        ("true",),
        MappingProxyType({}),
        HttpAnswers("http://127.0.0.1:1/"),
        needs=needs,
    )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    layout = Layout(root=tmp_path, data=tmp_path / "data")
    layout.make()
    keys = ensure_keys(layout.secrets)
    return Machine(local_settings(Settings(), layout, keys), layout, keys, Host("java", (), 0))


def test_a_part_that_is_not_running_is_started() -> None:
    assert decide(part("a"), None) is Decision.START


def test_a_part_that_runs_with_the_same_settings_is_kept() -> None:
    assert decide(part("a"), Running(part("a").digest)) is Decision.KEEP


def test_a_part_that_runs_with_other_settings_is_restarted() -> None:
    assert decide(part("a"), Running("another")) is Decision.RESTART


def test_each_change_of_command_environment_or_port_changes_the_digest() -> None:
    one = Part("a", "a", INFRA, ("x",), MappingProxyType({"A": "1"}), HttpAnswers("http://h/"))
    other_command = Part(
        "a", "a", INFRA, ("y",), MappingProxyType({"A": "1"}), HttpAnswers("http://h/")
    )
    other_env = Part(
        "a", "a", INFRA, ("x",), MappingProxyType({"A": "2"}), HttpAnswers("http://h/")
    )
    other_port = replace(one, ports=(Port(1, "A_PORT"),))
    assert len({each.digest for each in (one, other_command, other_env, other_port)}) == 4


def test_a_group_stands_for_its_parts_and_no_name_for_all() -> None:
    parts = (part("a"), part("b", group=FENNEL))
    assert chosen(parts, ("infra",)) == parts[:1]
    assert chosen(parts, ()) == parts


def test_an_unknown_part_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UnknownPartError, match=r"no part called zookeeper; there are a, .*infra"):
        chosen((part("a"),), ("zookeeper",))


def test_needs_are_followed_to_their_end() -> None:
    parts = (part("a"), part("b", "a"), part("c", "b"), part("d"))
    assert [p.name for p in with_needs(parts, parts[2:3])] == ["a", "b", "c"]


def test_nobody_is_stopped_before_those_who_need_it(machine: Machine) -> None:
    parts = table(machine)
    waves = stopping_waves(parts)
    when = {p.name: i for i, wave in enumerate(waves) for p in wave}
    assert sorted(when) == sorted(p.name for p in parts)
    assert all(when[p.name] < when[need] for p in parts for need in p.needs)


def test_every_need_stands_above_its_part_in_the_table(machine: Machine) -> None:
    seen: set[str] = set()
    for row in table(machine):
        assert set(row.needs) <= seen, row.name
        seen.add(row.name)


def test_no_two_parts_share_a_port_and_each_port_can_be_moved(machine: Machine) -> None:
    ports = [port for row in table(machine) for port in row.ports]
    assert len({port.number for port in ports}) == len(ports) == 10
    variables = {f"FENNEL_{name.upper()}" for name in Settings.model_fields}
    assert {port.variable for port in ports} <= variables


def test_the_inline_orchestrator_needs_no_airflow(machine: Machine) -> None:
    inline = Machine(
        machine.settings.model_copy(update={"orchestrator": Orchestrator.INLINE}),
        machine.layout,
        machine.keys,
        machine.host,
    )
    assert not [row.name for row in table(inline) if row.name.startswith("airflow")]


def test_postgres_is_stopped_in_the_way_that_does_not_wait_for_clients(machine: Machine) -> None:
    assert {row.name: row.stop_signal for row in table(machine)}["postgres"] is signal.SIGINT


def test_user_code_is_started_without_our_passwords(machine: Machine) -> None:
    executors = next(row for row in table(machine) if row.name == "executors")
    secrets = [
        machine.keys.postgres_password,
        machine.keys.admin_token,
        machine.keys.s3_secret_key,
        machine.keys.users_secrets_key,
    ]
    assert not [
        value for value in executors.env.values() if any(secret in value for secret in secrets)
    ]


def test_passwords_stand_in_no_command_line(machine: Machine) -> None:
    words = [word for row in table(machine) for word in row.command]
    assert not [
        word
        for word in words
        for name in ("postgres_password", "s3_secret_key", "admin_token")
        if getattr(machine.keys, name) in word
    ]


def test_settings_survive_their_way_through_the_environment(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in process_env(machine.settings).items():
        monkeypatch.setenv(name, value)
    assert Settings().model_dump() == machine.settings.model_dump()
