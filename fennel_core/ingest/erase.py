"""`erase`: keys of a dataset that are hidden at once and never taken again.

Theory. An erasure is a row in Postgres (`connections.erasures`) and obeyed from then on by
everybody who takes or shows rows: ingest drops rows of the dataset with such a key at the door,
because the version in each transaction's stamp covers erasures too; query servers answer as if
there were none. It holds for the dataset's name in every branch. What had been computed from the
rows elsewhere stays until those datasets are erased themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa

from fennel_core.blueprints.spec import DatasetView
from fennel_core.ingest.catalogs import Catalogs
from fennel_core.ingest.store import Away, CatalogDirectory
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.ids import BranchName, DatasetName, WorkspaceId
from fennel_core.vocab.keys import key_bytes
from fennel_core.wire.errors import BadColumn
from fennel_core.wire.json_decode import decode_column


class EraseBody(msgspec.Struct):
    """What the client sends."""

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
        """Erase the keys in `body`, for ever; how many they are.

        ApiError: 400 malformed, 404 unknown dataset, 500 keys that are not exactly the dataset's
        erase keys, 503 when nothing can be written.
        """
        try:
            asked = _decode(body).erase_keys
        except (msgspec.ValidationError, msgspec.DecodeError) as wrong:
            text = (
                f'the body of erase is malformed: {wrong}; send {{"erase_keys": '
                "[{field: value}]} as JSON"
            )
            raise ApiError(400, "erase-malformed", text) from wrong
        try:
            view = (await self._catalogs.reload(workspace)).datasets.get((branch, dataset))
            if view is None:
                raise ApiError(404, "dataset-unknown", f"Dataset {dataset} not found")
            keys = erased_keys(view, asked)
            if keys:
                await self._directory.erase(workspace, dataset, view.erase_keys, keys)
                self._catalogs.forget(workspace)
        except Away as away:
            raise ApiError(
                503, "ingest-unavailable", f"nothing was erased: {away}: try again"
            ) from away
        return len(keys)


def erased_keys(view: DatasetView, asked: Sequence[Mapping[str, Any]]) -> list[bytes]:
    """The distinct key bytes of the dataset's erase-key fields; ApiError 500, in the client's
    words, when `asked` does not fit them.
    """
    names = set(view.schema.names)
    for each in asked:
        for name in each:
            if name not in names:
                raise _refused(f"Field: {name} not in dataset")
            if name not in view.schema.key_names:
                raise _refused(f"Field: {name} not in a key field in dataset")
            if name not in view.erase_keys:
                raise _refused(f"Field: {name} is not an erase key field in dataset")
        if len(each) != len(view.erase_keys):
            raise _refused("Not enough erase key were provided")
    if not asked:
        return []
    columns = {}
    for name in view.erase_keys:
        field = view.schema.field(name)
        assert field is not None, "the compiler has checked that erase keys are fields"
        try:
            columns[name] = decode_column([each[name] for each in asked], field.dtype, name)
        except BadColumn as bad:
            raise _refused(str(bad)) from bad
    frame = pl.from_arrow(pa.table(columns))
    assert isinstance(frame, pl.DataFrame), "a table becomes a frame"
    return list(dict.fromkeys(key_bytes(frame, view.erase_keys)))


def _refused(text: str) -> ApiError:
    return ApiError(500, "erase-refused", text)
