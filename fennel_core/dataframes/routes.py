"""`/dataframes`: datasets and query logs for readers with a token and no keys of the stores."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query, Request, Response

from fennel_core.dataframes.api_errors import ReadRefused
from fennel_core.dataframes.planning import AskedDataset
from fennel_core.dataframes.read_request import Mode
from fennel_core.dataframes.read_service import DataframeReads
from fennel_core.definition.attached import attached
from fennel_core.definition.json_messages import json_body, object_body
from fennel_core.definition.routes import API
from fennel_core.definition.server_state import Reader, State
from fennel_core.vocab.ids import DatasetName, Offset, PartitionIndex, TopicName

SOURCE: Final = {
    "dataset": {"type": "string"},
    "mode": {"type": "string", "enum": list(Mode)},
}
MSGPACK: Final = "application/msgpack"

router = APIRouter(prefix=f"{API}/dataframes", tags=["dataframes"])


Reads = Annotated[DataframeReads, Depends(attached("dataframe_reads", DataframeReads))]
Key = Annotated[str, Query(description="Of a file, as `source` returned it.")]
First = Annotated[int, Query(ge=0, description="First byte, or first offset.")]
Size = Annotated[int, Query(gt=0, description="Number of bytes.")]
End = Annotated[int, Query(ge=0, description="Offset behind the last record.")]
Partition = Annotated[int, Query(ge=0)]


@router.post("/source", openapi_extra=object_body(SOURCE, SOURCE))
async def source(request: Request, state: State, principal: Reader, reads: Reads) -> Response:
    """Return what there is to read of a dataset as of now, for the DataFrame reader."""
    body = await json_body(request, state.settings.body_limit_bytes, frozenset(SOURCE))
    dataset, mode = body.get("dataset"), body.get("mode")
    if not isinstance(dataset, str) or mode not in set(Mode):
        raise ReadRefused(f"name a `dataset`, and a `mode` of {', '.join(Mode)} [read-option]")
    asked = AskedDataset(
        principal.workspace, principal.branch, DatasetName(dataset), Mode(str(mode))
    )
    return Response(await reads.source(asked), media_type=MSGPACK)


@router.get("/query_log")
async def query_log(principal: Reader, reads: Reads) -> Response:
    """Return what there is to read of the workspace's query log as of now."""
    return Response(await reads.query_log(principal.workspace), media_type=MSGPACK)


@router.get("/file")
async def file(principal: Reader, reads: Reads, key: Key, first: First, size: Size) -> Response:
    """Return bytes of a file of history."""
    body = await reads.range_of(principal.workspace, key, first, size)
    return Response(body, media_type="application/octet-stream")


@router.get("/tail")
async def tail(
    principal: Reader, reads: Reads, topic: str, partition: Partition, first: First, end: End
) -> Response:
    """Return records of a topic that are not in history yet, or the first of them."""
    part = (TopicName(topic), PartitionIndex(partition))
    page = await reads.tail(principal.workspace, part, Offset(first), Offset(end))
    return Response(page, media_type=MSGPACK)
