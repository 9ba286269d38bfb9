"""What a released version stored decodes with the code of this version, without a platform."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from rocksdict import Cache

from fennel_core.blueprints import stored_names
from fennel_core.blueprints.logical import LogicalJob, LogicalTopic
from fennel_core.blueprints.plan_entries import PlanAction, decode_record
from fennel_core.blueprints.spec import Catalog, Job
from fennel_core.connections import migrate
from fennel_core.connections.secrets import Sealer
from fennel_core.definition.validation import (
    compile_definitions,
    decode_commit,
    validate_definitions,
)
from fennel_core.engine.state_progress import NO_PROGRESS, load
from fennel_core.hangar.rocks import RocksHangar
from fennel_core.history import parquet
from fennel_core.replaylog.marker import IterationMarker, decode_marker
from fennel_core.snapshots.manifest import decode_manifest
from fennel_core.vocab.ids import WorkspaceId
from tests.upgrade import archive, market

CHANGED = """\
migration {name} is not what version {version} released. A released migration never changes, because
databases have applied it: restore the file, and write the change as a new file with the next number
(docs/upgrading.md)."""


def test_every_released_version_has_a_fixture() -> None:
    changelog = (archive.FOLDER.parents[1] / "CHANGELOG.md").read_text()
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", changelog, re.M)
    made = [archive.version_of(path) for path in archive.fixtures()]
    missing = [version for version in released if version not in made]
    assert missing == [], "run `make upgrade-fixture` for this version (docs/upgrading.md)"


def test_no_released_migration_changes(fixture_folder: Path) -> None:
    version = archive.read_json(fixture_folder, archive.MANIFEST)["version"]
    files = {each.number: each for each in migrate.read()}
    applied = archive.tables(fixture_folder)["migration"]
    assert applied
    for row in applied:
        file = files.get(int(row["number"] or 0))
        name = f"{row['number']:0>4}_{row['name']}"
        unchanged = file is not None and (file.name, file.sha256) == (row["name"], row["sha256"])
        assert unchanged, CHANGED.format(name=name, version=version)


def test_every_definition_decodes(fixture_folder: Path) -> None:
    tables = archive.tables(fixture_folder)
    for row in tables["job"]:
        job = stored_names.loads(archive.binary(row["spec"]), Job)
        assert (job.id, job.workspace) == (row["id"], row["workspace"])
    for row in tables["asset"]:
        blueprint = stored_names.loads(archive.binary(row["blueprint"]), object)
        assert isinstance(blueprint, LogicalTopic | LogicalJob)
        assert (blueprint.key.kind, blueprint.key.identity) == (row["kind"], row["identity"])
    actions: Counter[PlanAction] = Counter()
    for row in tables["commit"]:
        catalog = stored_names.loads(archive.binary(row["catalog"]), Catalog)
        assert catalog.workspace == row["workspace"]
        assert decode_commit(archive.binary(row["request"])).request.datasets
        actions.update(each.action for each in decode_record((row["plan"] or "").encode()).entries)
    assert {PlanAction.CREATE, PlanAction.KEEP, PlanAction.RETAIN} <= set(actions)


def test_the_definitions_of_every_branch_compile_to_the_assets_that_it_has(
    fixture_folder: Path,
) -> None:
    tables = archive.tables(fixture_folder)
    partitions = archive.read_json(fixture_folder, archive.MANIFEST)["partitions"]
    merged = {row["id"]: archive.binary(row["merged"]) for row in tables["commit"]}
    for branch in tables["branch"]:
        owned = {
            tuple((row["asset_id"] or "").split(".")[1:3])
            for row in tables["asset_ref"]
            if (row["branch"], row["commit_id"]) == (branch["name"], branch["target"])
        }
        received = decode_commit(merged[branch["target"]])
        valid = validate_definitions(received, None, incremental=False)
        compiled = compile_definitions(valid, partitions).blueprints
        assert compiled
        new = [each.title for each in compiled if (each.key.kind, each.key.identity) not in owned]
        assert new == [], f"an unchanged commit of branch {branch['name']} would create these"


def test_every_marker_decodes(fixture_folder: Path) -> None:
    values = msgspec.msgpack.decode((fixture_folder / archive.MARKERS).read_bytes())
    markers = [decode_marker(value) for value in values]
    assert any(isinstance(marker, IterationMarker) and marker.ranges for marker in markers)


def test_every_local_state_opens_at_its_position(fixture_folder: Path, tmp_path: Path) -> None:
    states = [path.parent for path in (fixture_folder / archive.STATE).rglob("CURRENT")]
    assert states
    reached = 0
    for number, state in enumerate(states):
        copy = tmp_path / str(number)
        shutil.copytree(state, copy)
        hangar = RocksHangar(copy, Cache(1024 * 1024))
        reached += load(hangar) != NO_PROGRESS
        hangar.close()
    assert reached > len(states) / 2, "most job partitions have applied rows"


def test_every_snapshot_is_complete(fixture_folder: Path) -> None:
    tables = archive.tables(fixture_folder)
    (installation,) = tables["installation"]
    root = fixture_folder / archive.OBJECTS / (installation["id"] or "")
    assert tables["snapshot"]
    for row in tables["snapshot"]:
        body = (root / (row["manifest"] or "")).read_bytes()
        assert hashlib.sha256(body).hexdigest() == row["sha256"]
        manifest = decode_manifest(body)
        assert (manifest.job, str(manifest.part)) == (row["job_id"], row["part"])
        for file in manifest.files:
            content = (root / file.object).read_bytes()
            assert (len(content), hashlib.sha256(content).hexdigest()) == (
                file.size_bytes,
                file.sha256,
            )


def test_every_file_of_history_decodes(fixture_folder: Path) -> None:
    tables = archive.tables(fixture_folder)
    (installation,) = tables["installation"]
    root = fixture_folder / archive.OBJECTS / (installation["id"] or "")
    files = tables["history_file"]
    assert sum(int(row["row_count"] or 0) for row in files) > 100
    for row in files:
        frame = parquet.decode_file((root / (row["object_key"] or "")).read_bytes())
        assert frame.height == int(row["row_count"] or 0)
        first, stop = int(row["first_offset"] or 0), int(row["next_offset"] or 0)
        assert frame[parquet.OFFSET].is_between(first, stop, closed="left").all()


def test_a_secret_decrypts_with_the_key_of_the_installation(
    fixture_folder: Path, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    shutil.copy(fixture_folder / "secrets" / "users_secrets_key", key)
    key.chmod(0o600)
    (row,) = archive.tables(fixture_folder)["secret"]
    sealed = archive.binary(row["sealed"])
    workspace = WorkspaceId(row["workspace"] or "")
    assert Sealer.from_file(key).open(workspace, "vault", sealed) == market.SECRET


@pytest.mark.parametrize(
    ("table", "least"),
    [("erasure", 1), ("snapshot", 10), ("source_clock", 4), ("token", 1), ("branch", 2)],
)
def test_the_fixture_has_rows_in_every_table_that_outlives_a_process(
    fixture_folder: Path, table: str, least: int
) -> None:
    assert len(archive.tables(fixture_folder)[table]) >= least


def test_the_fixture_has_dead_letters(fixture_folder: Path) -> None:
    logs = (fixture_folder / archive.KAFKA).glob("*.dead.*/*.log")
    assert sum(log.stat().st_size for log in logs) > 0


def test_the_fixture_has_late_rows_and_retained_assets(fixture_folder: Path) -> None:
    tables = archive.tables(fixture_folder)
    assert sum(int(row["discarded"] or 0) for row in tables["source_clock"]) > 0
    states = Counter(row["state"] for row in tables["asset"])
    assert states["live"] > 50
    assert states["retained"] > 0


def test_the_recorded_responses_are_not_empty(fixture_folder: Path) -> None:
    requests = archive.read_json(fixture_folder, archive.ANSWERS)["requests"]
    found = [each["response"]["found"] for each in requests if "lookup" in each["path"]]
    assert sum(map(sum, found)) > 100
    assert "There" in json.dumps(requests)
