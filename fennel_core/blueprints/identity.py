"""Identities: Merkle hashes of logic, by which equal definitions share one asset.

The identity of a job is the hash of its step's logic, the version of the step's code, the
identities of its inputs, the partitioning of its output and a salt. The identity of a topic is the
hash of its writer's. So content is named by the way it is computed: two pipelines with the same
beginning share that beginning, two branches with the same definition share everything, and a change
renames exactly the assets downstream of it.

Part of the logic are types, names of columns, expressions, parameters, and user code as its author
wrote it, together with the code that it includes (`wire.code_logic` ignores comments and layout).
Not part of it are owners, descriptions, tags, titles, names of datasets and pipelines, credentials,
poll intervals and retention. The *version* of a dataset is part of it: users raise it to have a
dataset computed again, so it salts the dataset's last job and its user code (whose result can
depend on things outside, such as a library).

Two mistakes would break this: hashing something that differs between two serialisations of one
definition, and leaving out something that changes a result. Nothing of the process that compiles is
hashed: the number of partitions is a property of the workspace, fixed when it is first used, so
co-partitioned inputs agree on it and no setting renames an asset; the digests of user code are the
same under every Python. Classes and fields are hashed
under their stored names (`stored_names.py`), so renaming them in Python changes no identity.

The content of a source dataset is named by its schema, its version and the sources that it *began*
with. A branch that adds or removes a source goes on with the same content under the same name, as
`source_contents.py` decides.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import is_dataclass
from typing import Any, Final

from fennel_core.blueprints.logical import AssetKey, AssetKind
from fennel_core.blueprints.stored_names import NAMES
from fennel_core.operators.spec import SourceReplaySpec, StatelessOp, StepSpec, step_version
from fennel_core.vocab.ids import Identity
from fennel_core.vocab.schema import Schema
from fennel_core.wire.canonical_logic import source_logic
from fennel_core.wire.code_logic import code_digest
from fennel_core.wire.connectors import Source
from fennel_core.wire.pycode import PyCode

FORMAT: Final = 3
"""Part of every identity. Raise it when stored bytes change for all assets: every asset gets a new
name, so none can be mistaken for one that another version wrote.
"""
START: Final = "earliest"
"""The default start of a source: the earliest retained row of its endpoint."""


def source_identity(source: Source, schema: Schema, version: int) -> Identity:
    """Return the identity of the rows that one source feeds to one dataset."""
    return _hash("source", source_logic(source).decode(), _logic(schema), version, START)


def source_topic(
    sources: Iterable[Identity], schema: Schema, version: int, number: int = 0
) -> AssetKey:
    """Return the key of the topic with the content of a source dataset that begins with `sources`.

    `number` distinguishes contents that began with the same sources: 0 for the first.
    """
    parts = ["sourced", sorted(sources), _logic(schema), version, *([number] if number else [])]
    return AssetKey(AssetKind.TOPIC, _hash(*parts))


def raw_topic(webhook: str, endpoint: str) -> AssetKey:
    """Return the key of the topic with the requests of an endpoint, common to all its readers."""
    return AssetKey(AssetKind.RAW, _hash("raw", webhook, endpoint))


def stream_topic(kind: str, name: str, stream: str) -> AssetKey:
    """Return the key of the topic with the messages of an external stream, common to all readers.

    `kind` is that of the system, `name` the connector's, `stream` what is read there.
    """
    return AssetKey(AssetKind.RAW, _hash("raw", kind, name, stream))


def positions(raw: AssetKey) -> AssetKey:
    """Return the key of the topic that says how far the stream of `raw` was read."""
    return AssetKey(AssetKind.POSITIONS, _hash("positions", raw.identity))


def sink(kind: str, name: str, place: str, topic: AssetKey) -> AssetKey:
    """Return the key of a sink, common to all branches that write the same content there.

    `kind` is that of the system, `name` the connector's, `place` what is written there, `topic` the
    content.
    """
    return AssetKey(AssetKind.SINK, _hash("sink", kind, name, place, topic.identity))


def dead_letters() -> AssetKey:
    """Return the key of the workspace's dead-letter topic."""
    return AssetKey(AssetKind.DEAD, _hash("dead"))


def query_log() -> AssetKey:
    """Return the key of the workspace's topic of logged queries."""
    return AssetKey(AssetKind.QUERY_LOG, _hash("query log"))


def job(
    step: StepSpec,
    inputs: Sequence[AssetKey],
    partition_by: tuple[str, ...] | None,
    salt: Any,
    *,
    watermark: bool = False,
) -> AssetKey:
    """Return the key of a job. `partition_by` is None if the job has no output."""
    parts = None if partition_by is None else list(partition_by)
    return AssetKey(
        AssetKind.JOB,
        _hash(
            "job",
            _logic(step),
            step_version(step),
            [i.identity for i in inputs],
            parts,
            salt,
            watermark,
        ),
    )


def source_replay(source: Identity, step: SourceReplaySpec, topic: AssetKey) -> AssetKey:
    """Return the key of the job that recomputes the rows of a source into a dataset's topic."""
    return AssetKey(
        AssetKind.JOB, _hash("source_replay", source, step_version(step), topic.identity)
    )


def output_topic(writer: AssetKey) -> AssetKey:
    """Return the key of the topic that a job writes."""
    return AssetKey(AssetKind.TOPIC, _hash("output", writer.identity))


def replaylog(writer: AssetKey) -> AssetKey:
    """Return the key of the replaylog of a job."""
    return AssetKey(AssetKind.REPLAYLOG, _hash("replaylog", writer.identity))


def code_logic(code: PyCode) -> list[Any]:
    """Return the digest of user code (`wire.code_logic`) and of all it includes."""
    return [code_digest(code.core_code), [code_logic(include) for include in code.includes]]


def user_code_salt(version: int, includes: Sequence[PyCode]) -> list[Any]:
    """Return the salt of user code: the dataset's version and the code that its pipeline includes.

    Both can change the result of user code without changing its text.
    """
    return [version, [code_logic(include) for include in includes]]


def same_logic(one: StepSpec, other: StepSpec) -> bool:
    """Return whether two steps do the same to their inputs."""
    return step_version(one) == step_version(other) and bool(_logic(one) == _logic(other))


def _logic(value: object) -> Any:
    """Return the canonical form of `value`, with digests of user code and without operator ids."""
    match value:
        case PyCode():
            return ["code", *code_logic(value)]
        case _ if isinstance(value, StatelessOp):
            # The client generates the ids of operands, partly from names; the identities of the
            # inputs already say which rows are read.
            return [
                NAMES.name_of(type(value)),
                {f: _logic(v) for f, v in NAMES.fields_of(value).items() if f != "operand"},
            ]
        case tuple():
            return ["tuple", *(_logic(v) for v in value)]
        case _ if is_dataclass(value):
            fields = NAMES.fields_of(value)
            return [NAMES.name_of(type(value)), {f: _logic(v) for f, v in fields.items()}]
        case _:
            return NAMES.to_data(value)


def _hash(*parts: Any) -> Identity:
    text = json.dumps([FORMAT, *parts], sort_keys=True, separators=(",", ":"))
    return Identity(hashlib.sha256(text.encode()).hexdigest()[:32])
