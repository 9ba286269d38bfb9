"""Identities: a Merkle hash of logic, so that equal definitions name equal assets wherever they
were written.

Theory. The identity of a job is the hash of what its step computes, of the version of the step's
code, of its inputs' identities, of how its output is partitioned, and of a salt; the identity of a
topic is the hash of its writer's. So content is named by how it was made: two pipelines with the
same beginning share it, two branches with the same definition share everything, and a change
anywhere renames exactly what lies downstream.

What is logic: types, names of columns, expressions, parameters, and user code as its author wrote
it with what it includes (`wire.logic`; comments and the client's generated wrapper are not). What
is not: owners, descriptions, tags, titles, names of datasets and pipelines, credentials, poll
intervals and retention. A dataset's *version* is: people raise it to have things computed again, so
it salts the dataset's last job and its user code (whose result may depend on the world outside,
such as a library).

What would break it: hashing anything that differs between two serialisations of one definition, or
leaving out anything that changes a result. The number of partitions is in every hash, because
co-partitioned inputs must agree on it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import is_dataclass
from typing import Any, Final

from fennel_core.blueprints.logical import AssetKey, AssetKind
from fennel_core.blueprints.stored_names import NAMES
from fennel_core.operators.spec import StatelessOp, StepSpec, step_version
from fennel_core.vocab.ids import Identity
from fennel_core.vocab.schema import Schema
from fennel_core.wire.canonical_logic import logical_code, source_logic
from fennel_core.wire.connectors import Source
from fennel_core.wire.pycode import PyCode

FORMAT: Final = 2
"""Part of every identity. Raise it when stored bytes change for all assets: every asset gets a new
name, so none can be mistaken for one that another version wrote.
"""
START: Final = "earliest"
"""Where a source starts by default: at its endpoint's earliest retained row."""


def source_identity(source: Source, schema: Schema, version: int, partitions: int) -> Identity:
    """Of the rows that one source gives one dataset. Includes where the source starts."""
    return _hash(
        "source", source_logic(source).decode(), _logic(schema), version, partitions, START
    )


def source_topic(
    sources: Sequence[Identity], schema: Schema, version: int, partitions: int
) -> AssetKey:
    """Of the content of a dataset that is fed from outside."""
    return AssetKey(
        AssetKind.TOPIC, _hash("sourced", sorted(sources), _logic(schema), version, partitions)
    )


def raw_topic(webhook: str, endpoint: str, partitions: int) -> AssetKey:
    """Of what an endpoint received, whoever reads it."""
    return AssetKey(AssetKind.RAW, _hash("raw", webhook, endpoint, partitions))


def dead_letters(partitions: int) -> AssetKey:
    """Of the workspace's dead letters."""
    return AssetKey(AssetKind.DEAD, _hash("dead", partitions))


def job(
    step: StepSpec,
    inputs: Sequence[AssetKey],
    partition_by: tuple[str, ...] | None,
    salt: Any,
    partitions: int,
    *,
    watermark: bool = False,
) -> AssetKey:
    """Of a job. `partition_by` None: it has no output."""
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
            partitions,
            watermark,
        ),
    )


def output_topic(writer: AssetKey) -> AssetKey:
    return AssetKey(AssetKind.TOPIC, _hash("output", writer.identity))


def replaylog(writer: AssetKey) -> AssetKey:
    return AssetKey(AssetKind.REPLAYLOG, _hash("replaylog", writer.identity))


def code_logic(code: PyCode) -> list[Any]:
    """User code without what Python does not execute (`wire.logic`), with all it includes."""
    return [logical_code(code.core_code), [code_logic(include) for include in code.includes]]


def user_code_salt(version: int, includes: Sequence[PyCode]) -> list[Any]:
    """What decides the result of user code besides its own text: what the pipeline lends it, and
    the dataset's version.
    """
    return [version, [code_logic(include) for include in includes]]


def _logic(value: object) -> Any:
    """The canonical form of `value` with user code reduced to its logic and ids of operators left
    out.
    """
    match value:
        case PyCode():
            return ["code", *code_logic(value)]
        case _ if isinstance(value, StatelessOp):
            # The client makes up the ids of operands, from names among other things; what is read
            # is in the inputs' identities.
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
