"""Exports to a real bucket."""

from __future__ import annotations

from pathlib import Path

import pytest

from fennel_core.connections import s3
from fennel_core.dataframes.export_places import place_at
from fennel_core.history.errors import ExportFailed
from tests.support.s3 import S3Server, object_keys

BUCKET = "exports"


def test_objects_of_an_export_are_written_once_and_removed(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = s3.client(s3_server)
    s3.ensure_bucket(client, BUCKET)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.s3_endpoint)
    monkeypatch.setenv("AWS_DEFAULT_REGION", s3_server.s3_region)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.s3_access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.s3_secret_key.get_secret_value())
    place = place_at(f"s3://{BUCKET}/users/may/")
    place.require_empty()
    (tmp_path / "part").write_bytes(b"rows")
    place.write("part-0.parquet", tmp_path / "part")
    place.write("_delta_log/0.json", b"{}")
    with pytest.raises(ExportFailed, match="was written by another"):
        place.write("_delta_log/0.json", b"other")
    with pytest.raises(ExportFailed, match="s3://exports/users/may/ is not empty"):
        place.require_empty()
    keys = ["users/may/_delta_log/0.json", "users/may/part-0.parquet"]
    assert sorted(object_keys(client, BUCKET, "users/")) == keys
    assert s3.get(client, BUCKET, keys[1]) == b"rows"
    place.remove("part-0.parquet")
    assert sorted(object_keys(client, BUCKET, "users/")) == keys[:1]
    with pytest.raises(ExportFailed, match="s3://none/x/ cannot be written"):
        place_at("s3://none/x").require_empty()
