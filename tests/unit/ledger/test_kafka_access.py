"""The rules of Kafka for each component, as they are printed, and the command that writes them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from fennel_core.apps.cli import main
from fennel_core.apps.kafka_commands import password
from fennel_core.ledger.kafka_access import ACCESS, rules_of
from fennel_core.vocab.ids import WorkspaceId


def test_rules_of_a_workspace_reach_no_other_one() -> None:
    rules = rules_of([WorkspaceId("shop")])
    own = {"ingest.", "fennel-audit-", "fennel-core", "spark-kafka-"}
    assert {rule.component for rule in rules} == set(ACCESS)
    assert all(rule.prefix.startswith("shop.") or rule.prefix in own for rule in rules)
    both = rules_of([WorkspaceId("shop"), WorkspaceId("ads")])
    assert set(rules) < set(both)


def test_only_definition_changes_topics_and_it_writes_only_what_orders_settle() -> None:
    rules = [rule for rule in rules_of([WorkspaceId("shop")]) if rule.resource == "TOPIC"]
    for rule in rules:
        settled = {"shop.topic.", "shop.dead.", "shop.positions.", "fennel-audit-"}
        changes = rule.operation not in {"READ", "WRITE", "DESCRIBE"}
        assert changes <= (rule.component == "definition")
        if rule.component == "definition" and rule.prefix not in settled:
            assert rule.operation != "WRITE"


def test_the_command_prints_the_rules_and_writes_nothing() -> None:
    done = CliRunner().invoke(main, ["kafka-access", "shop", "--show"])
    assert done.exit_code == 0, done.output
    assert "fennel-query WRITE TOPIC shop.querylog.*" in done.output.splitlines()
    assert CliRunner().invoke(main, ["kafka-access", "Sh.op", "--show"]).exit_code == 1


def test_a_workspace_whose_transactions_ingest_could_fence_is_refused() -> None:
    done = CliRunner().invoke(main, ["kafka-access", "shop", "ingest", "--show"])
    assert done.exit_code == 1
    assert done.stderr.startswith("workspace `ingest` can have no rules of its own: ")
    assert not done.stdout
    assert CliRunner().invoke(main, ["kafka-access", "ingest-2", "--show"]).exit_code == 0


def test_a_password_is_generated_once_and_its_owners_only(tmp_path: Path) -> None:
    folder = tmp_path / "kafka"
    made = password(folder, "query")
    assert password(folder, "query") == made != password(folder, "engine")
    file = folder / "fennel-query"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    file.write_text("")
    with pytest.raises(OSError, match="is empty"):
        password(folder, "query")
