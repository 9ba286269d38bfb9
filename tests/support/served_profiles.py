"""A branch of a real database that serves a recorded commit, over a slot without an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import psycopg

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.spec import Catalog, Job
from fennel_core.operators.spec import TableSpec
from fennel_core.vocab.ids import TopicName, WorkspaceId
from fennel_core.wire.decode import decode_sync_request
from tests.support.fake_slots import FakeSlot
from tests.support.query_world import table_view

COMMIT: Final = (
    Path(__file__).resolve().parents[1] / "golden" / "wire" / "featuresets.binpb"
).read_bytes()
W: Final = WorkspaceId("process")
PARTITIONS: Final = 4
ADA: Final[list[object]] = [
    36,
    "Ada",
    {"city": "London", "zip_code": None},
    "1.50",
    [1.0, 2.0, 3.0, 4.0],
    [],
]
"""The row of `ada` in `Profiles`."""


USERS: Final = tuple(f"user{number}" for number in range(20))
"""Users with the row of `ada`."""


def fill(rows: psycopg.Connection[Any], slot: FakeSlot) -> None:
    """A branch that serves the recorded commit, one job for `Profiles`, and the slot that owns
    it.
    """
    [profiles, *_] = decode_sync_request(COMMIT).datasets
    view = table_view(profiles)
    assert view.served_by is not None
    job = Job(
        view.served_by,
        W,
        (),
        (),
        TableSpec(profiles.schema),
        TopicName("r"),
        TopicName("d"),
        PARTITIONS,
        "Profiles: table",
    )
    catalog = stored_names.dumps(Catalog(W, (view,), (), (job.id,), PARTITIONS))
    rows.execute("INSERT INTO workspace (name) VALUES (%s)", (W,))
    rows.execute(
        "INSERT INTO commit (id, workspace, branch, state, digest, request, options, "
        "merged, catalog)"
        " VALUES ('c1', %s, 'main', 'live', '-', %s, '{}', %s, %s)",
        (W, COMMIT, COMMIT, catalog),
    )
    rows.execute("INSERT INTO branch (workspace, name, serving) VALUES (%s, 'main', NULL)", (W,))
    rows.execute(
        "INSERT INTO slot (id, name, engine, address, lease_until) VALUES ('s', 'e-0', 'e', %s, "
        "now() + interval '1 h')",
        (slot.path,),
    )
    rows.execute(
        "INSERT INTO job (id, workspace, spec) VALUES (%s, %s, %s)",
        (job.id, W, stored_names.dumps(job)),
    )
    for part in range(PARTITIONS):
        rows.execute(
            "INSERT INTO job_partition (job_id, part, slot_id, lease_until, status)"
            " VALUES (%s, %s, 's', now() + interval '1 h', 'running')",
            (job.id, part),
        )
    for user in ("ada", *USERS):
        slot.put(job.id, [user], 5, ADA)
