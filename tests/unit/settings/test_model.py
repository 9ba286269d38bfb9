"""The settings model: read at construction, documented, and without printed secrets."""

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from fennel_core.settings.model import Orchestrator, Settings
from fennel_core.vocab.keys import KEY_GROUPS

ROOT = Path(__file__).resolve().parents[3]


def test_environment_variables_change_any_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENNEL_QUERY_PORT", "9999")
    monkeypatch.setenv("FENNEL_ORCHESTRATOR", "inline")
    settings = Settings()
    assert settings.query_url == "http://127.0.0.1:9999"
    assert settings.orchestrator is Orchestrator.INLINE


def test_every_setting_has_a_description() -> None:
    silent = [
        name for name, field in Settings.model_fields.items() if len(field.description or "") < 20
    ]
    assert silent == []


def test_every_size_and_time_names_its_unit() -> None:
    unitless = [
        n
        for n, field in Settings.model_fields.items()
        if field.annotation is not bool
        and any(w in n for w in ("timeout", "limit", "lease", "retention", "grace"))
        and not n.endswith(("_ms", "_s", "_bytes", "_percent"))
    ]
    assert unitless == []


def test_passwords_are_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POSTGRES_DSN", "S3_SECRET_KEY", "AIRFLOW_PASSWORD", "ADMIN_TOKEN"):
        monkeypatch.setenv(f"FENNEL_{name}", "hunter2")
    assert "hunter2" not in repr(Settings()) + str(Settings()) + Settings().model_dump_json()


def test_dev_tokens_are_refused_off_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENNEL_DEV_TOKENS", "true")
    monkeypatch.setenv("FENNEL_HOST", "0.0.0.0")  # noqa: S104  # a value under test, never bound
    with pytest.raises(ValidationError, match="not loopback"):
        Settings()


@pytest.mark.parametrize(
    ("host", "published", "accepted"),
    [
        ("127.0.0.1", "", True),
        ("0.0.0.0", "127.0.0.1", True),  # noqa: S104  # a value under test, never bound. a container whose ports are published on loopback
        ("::", "::1", True),
        ("0.0.0.0", "", False),  # noqa: S104  # a value under test, never bound
        ("0.0.0.0", "0.0.0.0", False),  # noqa: S104  # a value under test, never bound
        ("0.0.0.0", "192.168.1.5", False),  # noqa: S104  # a value under test, never bound
        (
            "192.168.1.5",
            "127.0.0.1",
            False,
        ),  # bound to a network address, so reachable there in any case
        ("127.0.0.1", "192.168.1.5", False),  # something passes it on to a network
    ],
)
def test_dev_tokens_require_that_only_loopback_is_reachable(
    monkeypatch: pytest.MonkeyPatch, host: str, published: str, accepted: bool
) -> None:
    monkeypatch.setenv("FENNEL_HOST", host)
    monkeypatch.setenv("FENNEL_PUBLISHED_HOST", published)
    assert Settings().only_on_loopback is accepted
    monkeypatch.setenv("FENNEL_DEV_TOKENS", "true")
    if accepted:
        assert Settings().dev_tokens
    else:
        with pytest.raises(ValidationError, match="not loopback"):
            Settings()


def test_containers_use_names_and_users_the_published_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {
        "HOST": "0.0.0.0",  # noqa: S104  # a value under test, never bound
        "PUBLISHED_HOST": "127.0.0.1",
        "REACH_BY_NAME": "true",
    }.items():
        monkeypatch.setenv(f"FENNEL_{name}", value)
    settings = Settings()
    assert (settings.definition_url, settings.ingest_url) == (
        "http://definition:7401",
        "http://ingest:7402",
    )
    assert (settings.query_url, settings.airflow_pages) == (
        "http://127.0.0.1:7400",
        "http://127.0.0.1:7480",
    )
    assert settings.own_address == "127.0.0.1"


def test_dev_tokens_are_off_by_default() -> None:
    assert Settings().dev_tokens is False


def test_more_partitions_than_key_groups_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings(partitions=KEY_GROUPS).partitions == KEY_GROUPS
    monkeypatch.setenv("FENNEL_PARTITIONS", str(KEY_GROUPS + 1))
    with pytest.raises(ValidationError, match="partitions"):
        Settings()


def test_an_invalid_value_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENNEL_ENGINE_SLOTS", "many")
    with pytest.raises(ValidationError, match="engine_slots"):
        Settings()


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        Settings().host = "0.0.0.0"  # noqa: S104  # a value under test, never bound


def test_importing_the_model_opens_no_project_file_and_no_socket() -> None:
    probe = """
import sys
seen = []
def hook(event, args):
    ours = event == "open" and ".fennel" in str(args[0])
    if ours or event in ("socket.__new__", "subprocess.Popen"):
        seen.append(event)
sys.addaudithook(hook)
import fennel_core.settings.model
sys.exit(str(seen) if seen else 0)
"""
    done = subprocess.run(  # noqa: S603  # a program of this test, and no shell
        [sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_time_out_of_transactions_that_is_short_for_brokers_is_refused() -> None:
    """Brokers look every 10 s, and `purge` waits two time-outs for that."""
    assert Settings(transaction_timeout_ms=5_000).transaction_timeout_ms == 5_000
    with pytest.raises(ValidationError, match="greater than or equal to 5000"):
        Settings(transaction_timeout_ms=4_999)
