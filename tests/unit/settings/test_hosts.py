"""A server accepts its own names in `Host`, and development tokens on this machine only."""

from __future__ import annotations

import pytest

from fennel_core.settings.hosts import HostRules, host_rules
from fennel_core.settings.model import Settings


@pytest.mark.parametrize(
    "header",
    ["127.0.0.1:7400", "localhost", "LOCALHOST:7400", "a.localhost:1", "[::1]:7400", "10.1.2.3"],
)
def test_addresses_and_localhost_are_accepted_without_any_setting(header: str) -> None:
    assert HostRules().allows(header)


@pytest.mark.parametrize(
    "header",
    [
        *("evil.example", "evil.example:7400", "127.0.0.1.evil.example", "localhost.evil.example"),
        *("", "127.0.0.1:7400:1", "a b", "[::1", "user@127.0.0.1", "127.0.0.1/x", "localhost:"),
    ],
)
def test_any_other_name_is_refused(header: str) -> None:
    assert not HostRules().allows(header)
    assert not HostRules().allows_development_tokens(header)


def test_listed_names_and_endings_are_accepted_and_no_development_tokens_with_them() -> None:
    settings = Settings(allowed_hosts="api.example.com, .internal", host="gateway.local")
    rules = host_rules(settings, "query", public=True)
    for header in ("API.example.com:443", "a.b.internal", "gateway.local:7400"):
        assert rules.allows(header)
        assert not rules.allows_development_tokens(header)
    for header in ("xapi.example.com", "internal", "example.com"):
        assert not rules.allows(header)
    assert host_rules(Settings(allowed_hosts="*"), "query", public=True).allows("any.example")


@pytest.mark.parametrize("header", ["127.0.0.1", "127.9.9.9:7400", "[::1]", "localhost:7400"])
def test_development_tokens_work_on_this_machine(header: str) -> None:
    assert HostRules().allows_development_tokens(header)


@pytest.mark.parametrize("header", ["10.0.0.1", "0.0.0.0:7400", "[2001:db8::1]"])
def test_development_tokens_do_not_work_at_other_addresses(header: str) -> None:
    assert not HostRules().allows_development_tokens(header)


def test_parts_of_the_platform_reach_each_other_by_name_where_they_do() -> None:
    by_name = Settings(reach_by_name=True)
    definition = host_rules(by_name, "definition", public=False)
    assert definition.allows("definition:7401")
    assert definition.allows_development_tokens("definition:7401")
    query = host_rules(by_name, "query", public=True)
    assert query.allows("query:7400")
    assert not query.allows_development_tokens("query:7400"), "users reach this server"
    assert not host_rules(Settings(), "definition", public=False).allows("definition:7401")


def test_settings_can_be_the_key_of_a_cache() -> None:
    assert hash(Settings()) == hash(Settings()), "clients of S3 are cached by settings"
