"""The peer of `benchmarks/query.py`: Feast's Python server with the same number of features.

    python3.11 -m venv /tmp/feast && /tmp/feast/bin/pip install feast==0.67.0
    # five feature views of ten fields, 20,000 users, SQLite
    /tmp/feast/bin/python benchmarks/feast_peer.py /tmp/feast-repo
    /tmp/feast/bin/feast -c /tmp/feast-repo serve --port 6566 --no-access-log
    .venv/bin/python -m benchmarks.query --peer http://127.0.0.1:6566/get-online-features

Runs in an environment of its own, with Feast's dependencies only; imports nothing of the platform.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
from feast import Entity, FeatureStore, FeatureView, Field, FileSource, ValueType  # type: ignore[import-not-found]  # its own environment
from feast.types import Float64, Int64, String  # type: ignore[import-not-found]  # as above

DATASETS, FIELDS, USERS = 5, 10, 20_000
CONFIG = """
project: bench
registry: registry.db
provider: local
online_store: {type: sqlite, path: online.db}
entity_key_serialization_version: 3
"""


def column(field: int) -> list[object]:
    match field % 3:
        case 0:
            return [(user * 7919 + field) % 10**6 for user in range(USERS)]
        case 1:
            return [((user * 31 + field) % 1000) / 7 for user in range(USERS)]
        case _:
            return [f"value-{(user * 17 + field) % 10**6}" for user in range(USERS)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("repository", type=Path, help="folder to make the feature repository in")
    folder: Path = parser.parse_args().repository
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "feature_store.yaml").write_text(CONFIG)
    types = (Int64, Float64, String)
    user = Entity(name="user", join_keys=["uid"], value_type=ValueType.INT64)
    frame = pd.DataFrame({"uid": range(USERS)} | {f"v{n}": column(n) for n in range(FIELDS)})
    frame["ts"] = datetime.now(UTC) - timedelta(hours=1)
    frame.to_parquet(folder / "rows.parquet")
    source = FileSource(path=str((folder / "rows.parquet").resolve()), timestamp_field="ts")
    views = [
        FeatureView(
            name=f"D{number}",
            entities=[user],
            ttl=timedelta(days=365),
            schema=[
                Field(name="uid", dtype=Int64),
                *(Field(name=f"v{n}", dtype=types[n % 3]) for n in range(FIELDS)),
            ],
            source=source,
        )
        for number in range(DATASETS)
    ]
    store = FeatureStore(repo_path=str(folder))
    store.apply([user, *views])
    for view in views:
        store.write_to_online_store(view.name, frame)


if __name__ == "__main__":
    main()
