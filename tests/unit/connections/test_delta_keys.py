"""A Delta table is written with the keys of its stored connector, else with the platform's."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from fennel_core.connections.external_delta import delta_place, delta_refused
from fennel_core.settings.model import Settings
from fennel_core.wire.connectors import S3, Login, PlainSecret, S3Table, SealedSecret

OWN = Login(PlainSecret("own-key"), SealedSecret("1", "sealed"))
SETTINGS = Settings(
    s3_access_key="platform-key",
    s3_secret_key=SecretStr("platform-word"),
    s3_bucket="platform",
    sink_shared_buckets=("shared",),
)


def table(login: Login, bucket: str) -> S3Table:
    return S3Table(S3("lake", None, login), bucket, "a", "", "delta", "", (), False, None)


@pytest.mark.parametrize(
    ("login", "key", "word"),
    [(OWN, "own-key", "opened"), (Login(None, None), "platform-key", "platform-word")],
)
def test_the_keys_of_a_stored_connector_come_first(login: Login, key: str, word: str) -> None:
    found = delta_place(table(login, "b"), SETTINGS, lambda _: "opened").bucket
    assert (found.s3_access_key, found.s3_secret_key.get_secret_value()) == (key, word)


@pytest.mark.parametrize(
    ("login", "bucket", "refused"),
    [
        (OWN, "other", None),
        (OWN, "platform", "bucket of the platform itself"),
        (Login(None, None), "shared", None),
        (Login(None, None), "other", "fennel-core connector add lake s3"),
    ],
)
def test_the_platforms_keys_open_shared_buckets_only(
    login: Login, bucket: str, refused: str | None
) -> None:
    found = delta_refused(table(login, bucket), SETTINGS)
    assert found is None if refused is None else refused in (found or "")
