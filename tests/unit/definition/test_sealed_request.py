"""Plain secrets of connectors before a commit is stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from fennel_core.connections.secrets import Sealer, make_key_file
from fennel_core.definition.errors import SecretsNotConfigured
from fennel_core.definition.sealed_request import CREDENTIAL, seal_request
from fennel_core.graph.entity_graph import build_graph
from fennel_core.graph.rebase import units
from fennel_core.vocab.ids import WorkspaceId
from fennel_core.wire.connectors import PlainSecret, SealedSecret
from fennel_core.wire.decode import decode_sync_request
from tests.support.definition_world import recorded

SHOP = WorkspaceId("shop")
CONNECTORS = recorded("connectors")
SECRETS = {
    *("p", "mysql-password", "secret-key", "token", "certificate"),
    '{"type": "service_account"}',
}
"""Every plain secret of the recorded connectors; their user names and hosts are no secrets."""


@pytest.fixture
def sealer(tmp_path: Path) -> Sealer:
    make_key_file(tmp_path / "key")
    return Sealer.from_file(tmp_path / "key")


def values_in(value: object) -> Iterator[object]:
    """Yield every value inside a decoded message."""
    yield value
    if isinstance(value, tuple):
        for item in value:
            yield from values_in(item)
    elif is_dataclass(value):
        for each in fields(value):
            yield from values_in(getattr(value, each.name))


def plain_in(body: bytes) -> set[str]:
    found = values_in(decode_sync_request(body))
    return {value.value for value in found if isinstance(value, PlainSecret)}


def sealed_in(body: bytes) -> list[SealedSecret]:
    found = values_in(decode_sync_request(body))
    return [value for value in found if isinstance(value, SealedSecret)]


def test_every_plain_secret_is_replaced_by_one_that_only_the_key_opens(sealer: Sealer) -> None:
    assert plain_in(CONNECTORS) >= SECRETS
    stored = seal_request(CONNECTORS, SHOP, sealer).stored
    assert plain_in(stored).isdisjoint(SECRETS)
    for secret in SECRETS - {"p", "token"}:
        assert secret.encode() not in stored
    opened = {sealer.open(SHOP, CREDENTIAL, s.token.encode()) for s in sealed_in(stored)}
    assert opened == SECRETS


def test_equal_commits_stay_equal_although_every_encryption_differs(sealer: Sealer) -> None:
    first, second = (seal_request(CONNECTORS, SHOP, sealer) for _ in range(2))
    assert first.stored != second.stored
    assert first.comparable == second.comparable
    one, two = (units(build_graph(decode_sync_request(s.stored))) for s in (first, second))
    assert one == two
    other = seal_request(CONNECTORS.replace(b"mysql-password", b"mysql-passw0rd"), SHOP, sealer)
    assert other.comparable != first.comparable, "a changed password is a change"
    for each in sealed_in(first.stored):
        assert each.token.encode() not in first.comparable


def test_without_a_key_a_plain_secret_is_refused_and_other_commits_are_not() -> None:
    with pytest.raises(SecretsNotConfigured):
        seal_request(CONNECTORS, SHOP, None)
    features = recorded("featuresets")
    assert seal_request(features, SHOP, None).stored == features
    assert seal_request(b"\xff" * 40, SHOP, None).stored == b"\xff" * 40
