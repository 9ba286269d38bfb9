"""Handle `erase`: keys of a dataset are hidden at once and never accepted again.

An erasure is a row in Postgres (`connections.erasures`). The catalog version in the stamp of each
transaction covers erasures too, so ingest drops rows with an erased key from the next transaction
on, and query servers treat such a key as absent. An erasure holds for the dataset's name in every
branch. Rows of other datasets that were computed from erased rows stay until those datasets are
erased themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa

from fennel_core.blueprints.spec import DatasetView
from fennel_core.connections.errors import SystemUnavailable
from fennel_core.ingest.catalogs import Catalogs
from fennel_core.ingest.errors import (
    DatasetNotFound,
    EraseBodyMalformed,
    EraseKeysRejected,
    IngestUnavailable,
)
from fennel_core.ingest.store import CatalogDirectory
from fennel_core.vocab.ids import BranchName, DatasetName, WorkspaceId
from fennel_core.vocab.keys import key_bytes
from fennel_core.wire.errors import BadColumn
from fennel_core.wire.json_decode import decode_column


class EraseBody(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON body of `erase`."""

    erase_keys: list[dict[str, Any]]


_decode = msgspec.json.Decoder(EraseBody).decode


class EraseService:
    """Use from one event loop."""

    def __init__(self, catalogs: Catalogs, directory: CatalogDirectory) -> None:
        self._catalogs = catalogs
        self._directory = directory

    async def erase(
        self, workspace: WorkspaceId, branch: BranchName, dataset: DatasetName, body: bytes
    ) -> int:
        """Erase the keys in `body` permanently and return their number.

        Raises `EraseBodyMalformed`, `DatasetNotFound`, `EraseKeysRejected`, `IngestUnavailable`.
        """
        try:
            requested = _decode(body).erase_keys
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
            text = (
                f'the body of erase is malformed: {wrong}; send {{"erase_keys": '
                "[{field: value}]} as JSON"
            )
            raise EraseBodyMalformed(text) from wrong
        try:
            view = (await self._catalogs.reload(workspace)).datasets.get((branch, dataset))
            if view is None:
                raise DatasetNotFound(f"Dataset {dataset} not found")
            keys = erased_keys(view, requested)
            if keys:
                await self._directory.erase(workspace, dataset, view.erase_keys, keys)
                self._catalogs.invalidate(workspace)
        except SystemUnavailable as lost:
            raise IngestUnavailable(f"nothing was erased: {lost}; try again") from lost
        return len(keys)


def erased_keys(view: DatasetView, requested: Sequence[Mapping[str, Any]]) -> list[bytes]:
    """Return the distinct key bytes of the dataset's erase-key fields.

    Raises `EraseKeysRejected`, with the texts that the client's tests expect.
    """
    names = set(view.schema.names)
    for each in requested:
        for name in each:
            if name not in names:
                raise EraseKeysRejected(f"Field: {name} not in dataset")
            if name not in view.schema.key_names:
                raise EraseKeysRejected(f"Field: {name} not in a key field in dataset")
            if name not in view.erase_keys:
                raise EraseKeysRejected(f"Field: {name} is not an erase key field in dataset")
        if len(each) != len(view.erase_keys):
            raise EraseKeysRejected("Not enough erase key were provided")
    if not requested:
        return []
    columns = {}
    for name in view.erase_keys:
        field = view.schema.field(name)
        assert field is not None, "the compiler has checked that erase keys are fields"
        try:
            columns[name] = decode_column([each[name] for each in requested], field.dtype, name)
        except BadColumn as bad:
            raise EraseKeysRejected(str(bad)) from bad
    frame = pl.from_arrow(pa.table(columns))
    assert isinstance(frame, pl.DataFrame), "a table becomes a frame"
    return list(dict.fromkeys(key_bytes(frame, view.erase_keys)))
