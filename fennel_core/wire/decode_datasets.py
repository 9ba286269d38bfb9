"""Decode datasets, pipelines, indices and expectations into `wire.entities`."""

from __future__ import annotations

from fennel_core.vocab.ids import DatasetName
from fennel_core.wire import entities as en
from fennel_core.wire.decode_datatypes import (
    chosen,
    decode_duration_us,
    decode_schema,
    known,
    unknown,
)
from fennel_core.wire.decode_pycode import decode_metadata, decode_pycode
from fennel_core.wire.errors import UnsupportedValue
from fennel_core.wire.gen import dataset_pb2, expectations_pb2, index_pb2

EXPECTED_OF = {
    expectations_pb2.Expectations.EntityType.Dataset: en.ExpectedOf.DATASET,
    expectations_pb2.Expectations.EntityType.Featureset: en.ExpectedOf.FEATURESET,
}
FOREVER = "forever"


def decode_dataset(message: dataset_pb2.CoreDataset) -> en.Dataset:
    """Decode a dataset; raises `UnsupportedValue` if an erase key is not a key field."""
    schema = decode_schema(message.dsschema)
    not_keys = sorted(set(message.dsschema.erase_keys) - set(schema.key_names))
    if not_keys:
        raise UnsupportedValue(
            f"erase keys {not_keys} are not key fields; mark only key fields with `erase_key=True`"
        )
    return en.Dataset(
        name=DatasetName(message.name),
        version=message.version,
        schema=schema,
        erase_keys=tuple(message.dsschema.erase_keys),
        history_us=decode_duration_us(message.history),
        is_source=message.is_source_dataset,
        pycode=decode_pycode(message.pycode),
        metadata=decode_metadata(message.metadata),
        field_metadata=tuple(
            (name, decode_metadata(message.field_metadata[name]))
            for name in sorted(message.field_metadata)
        ),
    )


def decode_pipeline(message: dataset_pb2.Pipeline) -> en.Pipeline:
    """Decode a pipeline; its operators are separate messages."""
    return en.Pipeline(
        name=message.name,
        dataset=DatasetName(message.dataset_name),
        version=message.ds_version,
        inputs=tuple(DatasetName(name) for name in message.input_dataset_names),
        pycode=decode_pycode(message.pycode),
        metadata=decode_metadata(message.metadata),
    )


def decode_online_index(message: index_pb2.OnlineIndex) -> en.Index:
    """Decode an index for lookups of current values."""
    return en.Index(
        DatasetName(message.ds_name),
        message.ds_version,
        en.IndexSide.ONLINE,
        _index_duration_us(message.duration),
    )


def decode_offline_index(message: index_pb2.OfflineIndex) -> en.Index:
    """Decode an index for lookups as of a time in the past."""
    return en.Index(
        DatasetName(message.ds_name),
        message.ds_version,
        en.IndexSide.OFFLINE,
        _index_duration_us(message.duration),
    )


def _index_duration_us(message: index_pb2.IndexDuration) -> int | None:
    match chosen(message, "variant"):
        case "forever":
            if message.forever != FOREVER:
                raise UnsupportedValue(
                    f"an index duration of `{message.forever}` is unknown; use `forever`"
                )
            return None
        case "duration":
            return decode_duration_us(message.duration)
        case other:
            raise unknown(message, other)


def decode_expectations(message: expectations_pb2.Expectations) -> en.ExpectationSuite:
    """Decode the expectations of one entity."""
    return en.ExpectationSuite(
        name=message.suite,
        entity=message.entity_name,
        entity_kind=known(EXPECTED_OF, message.e_type, message, "entity type"),
        entity_version=message.entity_version,
        version=message.version,
        expectations=tuple(
            en.Expectation(item.expectation_type, item.expectation_kwargs)
            for item in message.expectations
        ),
        metadata=decode_metadata(message.metadata),
    )
