"""Stored names are frozen: no renaming in Python reaches stored bytes or identities."""

from __future__ import annotations

import dataclasses
import enum
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fennel_core.blueprints import identity
from fennel_core.blueprints.logical import Blueprint
from fennel_core.blueprints.spec import Catalog, Job
from fennel_core.blueprints.stored_names import NAMES, digest, dumps, loads
from fennel_core.engine.backfill import manifest as backfill
from fennel_core.operators.spec import StepSpec
from fennel_core.snapshots import manifest as snapshots
from fennel_core.vocab.canonical import Stored, StoredNames, python_names
from fennel_core.vocab.ids import Epoch, JobId, Offset, PartitionIndex, TopicName
from fennel_core.wire import canonical_logic
from fennel_core.wire.connectors import Sink, Source
from fennel_core.wire.entities import Expectation, ExtractorKind, IndexSide
from fennel_core.wire.operators import OperatorKind
from tests.support.stored_examples import example, reachable

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "stored" / "names.txt"
MEANING = """\
A stored name or stored byte changed. Data that a released version wrote could no longer be read,
and assets would get new names and be computed again. To rename something in Python, change only the
Python side of its row (`stored=python`) in wire/stored_names.py or blueprints/stored_names.py.
Additions are fine: run this test with REFRESH_GOLDEN=1 and review the difference.
See docs/decisions/0029-stored-names-are-a-frozen-table.md."""
POSITION = snapshots.StatePosition(7, Offset(8), {TopicName("t"): Offset(9)})
MANIFEST = snapshots.SnapshotManifest(
    snapshots.FORMAT,
    JobId("j"),
    PartitionIndex(1),
    Epoch(2),
    3,
    POSITION,
    (snapshots.ManifestFile("f", 5, "sha", "o"),),
)
BACKFILL = backfill.BackfillManifest("k", "j", 1, 2, 3, 4, {"t": 9}, [backfill.ChunkRef("c", "s")])


def written() -> str:
    """Return all stored names and the digests and identities of the example, one per line."""
    names = [
        " ".join([f"{row.name}:", *sorted(row.by_python_name().values())])
        for row in sorted(NAMES.rows, key=lambda row: row.name)
    ]
    compiled, jobs, catalog = example()
    identities = [
        *(f"{NAMES.name_of(type(j.step))} {j.key.identity}" for j in compiled.jobs),
        *(f"catalog.source {binding.identity}" for binding in catalog.sources),
    ]
    steps = {NAMES.name_of(type(job.step)): job for job in jobs}
    untitled = {
        **steps,
        "logical_job": compiled.jobs[0],
        "logical_topic": compiled.topics[0],
    }
    digests = [
        *(f"{name} {digest(dataclasses.replace(v, title=''))}" for name, v in untitled.items()),
        f"catalog {digest(catalog)}",
    ]
    manifests = [
        snapshots.encode_manifest(MANIFEST).decode(),
        backfill.encode_manifest(BACKFILL).decode(),
    ]
    parts = {"names": names, "identities": identities, "bytes": digests, "manifests": manifests}
    return "\n".join(f"[{title}]\n" + "\n".join(lines) + "\n" for title, lines in parts.items())


def test_no_stored_name_and_no_stored_byte_changes() -> None:
    text = written()
    if os.environ.get("REFRESH_GOLDEN"):
        GOLDEN.write_text(text)
    frozen = GOLDEN.read_text().splitlines()
    lost = [line for line in frozen if line not in text.splitlines()]
    assert not lost, f"{MEANING}\nChanged or lost:\n" + "\n".join(lost)
    assert text.splitlines() == frozen, f"{MEANING}\nOnly additions were found."


def test_every_class_that_can_be_stored_has_a_stored_name() -> None:
    named = {row.cls for row in NAMES.rows}
    stored = reachable(Job, Catalog, Blueprint)
    logic = reachable(OperatorKind, Source, Sink, ExtractorKind, Expectation, IndexSide)
    assert stored | logic <= named, sorted(cls.__qualname__ for cls in (stored | logic) - named)


def test_the_example_has_a_job_of_every_kind_of_step() -> None:
    _, jobs, _ = example()
    used = {type(job.step) for job in jobs}
    assert used == set(StepSpec.__args__), sorted(str(c) for c in set(StepSpec.__args__) - used)


def test_the_example_survives_storage() -> None:
    compiled, jobs, catalog = example()
    for value in (*jobs, *compiled.blueprints, catalog):
        assert loads(dumps(value), type(value)) == value


# --- renaming in Python ---------------------------------------------------------------------------


def renamed_class(cls: type) -> type:
    """Return a class with other Python names for itself and all its members."""
    if issubclass(cls, enum.Enum):
        return enum.Enum(f"Renamed{cls.__name__}", [f"RENAMED_{m}" for m in cls.__members__])
    fields = [f"renamed_{name}" for name in python_names(cls)]
    return dataclasses.make_dataclass(f"Renamed{cls.__name__}", fields, frozen=True)


def renamed_row(row: Stored) -> Stored:
    prefix = "RENAMED_" if issubclass(row.cls, enum.Enum) else "renamed_"
    members = [f"{stored}={prefix}{name}" for name, stored in row.by_python_name().items()]
    return Stored(row.name, renamed_class(row.cls), " ".join(members))


RENAMED_ROWS = {row.cls: renamed_row(row) for row in NAMES.rows}
RENAMED = StoredNames(RENAMED_ROWS.values())


def renamed(value: Any) -> Any:
    """Return `value` built from the renamed classes."""
    if isinstance(value, tuple):
        return tuple(map(renamed, value))
    if isinstance(value, enum.Enum):
        return RENAMED_ROWS[type(value)].cls[f"RENAMED_{value.name}"]
    if dataclasses.is_dataclass(value):
        fields = [renamed(getattr(value, name)) for name in python_names(type(value))]
        return RENAMED_ROWS[type(value)].cls(*fields)
    return value


def test_renaming_classes_and_fields_changes_no_stored_byte() -> None:
    compiled, jobs, catalog = example()
    for value in (*jobs, *compiled.blueprints, catalog):
        assert RENAMED.dumps(renamed(value)) == dumps(value)
        assert RENAMED.loads(dumps(value), object) == renamed(value)


@pytest.fixture
def renamed_in_place() -> Iterator[None]:
    """Give every stored class another name and module while the test runs."""
    attributes = ("__name__", "__qualname__", "__module__")
    before = {row.cls: [getattr(row.cls, name) for name in attributes] for row in NAMES.rows}
    for number, cls in enumerate(before):
        for name in attributes:
            setattr(cls, name, f"renamed{number}")
    yield
    for cls, values in before.items():
        for name, value in zip(attributes, values, strict=True):
            setattr(cls, name, value)


@pytest.mark.usefixtures("renamed_in_place")
def test_renaming_classes_changes_no_identity() -> None:
    assert written() == GOLDEN.read_text()


def test_renaming_fields_changes_no_logic(monkeypatch: pytest.MonkeyPatch) -> None:
    _, jobs, catalog = example()
    # User code and stateless operators are recognized by their class, not by their names.
    steps = [job.step for job in jobs if "PyCode" not in repr(job.step)]
    steps = [step for step in steps if "Assign" not in repr(step)]
    sources = [binding.source for binding in catalog.sources]
    logic = [identity._logic(step) for step in steps]
    rows = [canonical_logic._plain(source.preproc) for source in sources]
    monkeypatch.setattr(identity, "NAMES", RENAMED)
    monkeypatch.setattr(canonical_logic, "NAMES", RENAMED)
    assert [identity._logic(renamed(step)) for step in steps] == logic
    assert [canonical_logic._plain(renamed(source.preproc)) for source in sources] == rows
