"""Read datasets through the API: with a token, and without keys of the stores."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import httpx
import polars as pl

from fennel_core.connections.ranged_file import RangedFile
from fennel_core.dataframes.api_messages import decode_log, decode_page, decode_source
from fennel_core.dataframes.log_source import LogSource
from fennel_core.dataframes.planning import ReadPlan
from fennel_core.dataframes.read_request import ReadRequest
from fennel_core.dataframes.read_service import RANGE_BYTES
from fennel_core.history import parquet
from fennel_core.history.errors import ReadFailed
from fennel_core.history.parquet import RowFilter
from fennel_core.history.topic_slices import TopicSlice
from fennel_core.vocab.ids import Offset
from fennel_core.vocab.versions import decode

PATH: Final = "/api/v1/dataframes"
TIMEOUT_S: Final = 120.0
ATTEMPTS: Final = 8
"""Requests that are sent for one response: about a minute, in which a server restarts."""
LONGEST_PAUSE_S: Final = 15.0
AGAIN: Final = frozenset({429, 502, 503, 504})
"""Statuses after which the same request may succeed."""

Params = Mapping[str, str | int]


@dataclass(frozen=True, slots=True)
class ReadApi:
    """The API as a reader uses it; it is pickled to the tasks of Spark."""

    url: str
    token: str = field(repr=False)

    def call(
        self,
        method: str,
        path: str,
        params: Params | None = None,
        json: Mapping[str, str] | None = None,
        branch: str | None = None,
    ) -> bytes:
        """Return the body of a response; ReadFailed with the text of an error.

        A request that may succeed later is sent again.
        """
        headers = {} if branch is None else {"X-Fennel-Branch": branch}
        headers |= {"Authorization": f"Bearer {self.token}"}
        problem = ""
        for attempt in range(ATTEMPTS):
            pause_s = min(0.25 * 2**attempt, LONGEST_PAUSE_S)
            try:
                response = _client(self.url).request(
                    method, f"{PATH}{path}", params=params, json=json, headers=headers
                )
            except httpx.TransportError as lost:
                problem = str(lost) or type(lost).__name__
            else:
                if response.is_success:
                    return response.content
                problem = response.text
                if response.status_code not in AGAIN:
                    raise ReadFailed(problem if problem.endswith("]") else f"{problem} [read-api]")
                pause_s = max(pause_s, float(response.headers.get("Retry-After", 0)))
            if attempt < ATTEMPTS - 1:
                time.sleep(pause_s)
        raise ReadFailed(
            f"the API at {self.url} does not serve reads ({problem}); check the address and "
            "`fennel-core status` [read-api]"
        )

    def plan(self, request: ReadRequest) -> ReadPlan:
        """Return the plan of a read as of now; ReadFailed."""
        asked = {"dataset": request.dataset, "mode": str(request.mode)}
        message = self.call("POST", "/source", json=asked, branch=request.branch)
        return decode_source(message).plan(request)

    def query_log(self) -> LogSource:
        """Return what there is to read of the workspace's query log as of now; ReadFailed."""
        return decode_log(self.call("GET", "/query_log"))


@dataclass(frozen=True, slots=True)
class ApiVersions:
    """Versions that the API hands out. Implements `VersionStore`."""

    api: ReadApi

    def batches(
        self, part: TopicSlice, columns: Sequence[str], rows: RowFilter
    ) -> Iterator[pl.DataFrame]:
        """See `VersionStore.batches`."""
        for file in part.files:
            source = RemoteFile(self.api, file.object_key, file.size_bytes)
            below = part.end if file.next_offset > part.end else None
            yield from parquet.file_batches(source, columns, rows, below)
        first = part.tail_first
        while first < part.end:
            topic, partition = part.partition
            asked: Params = {
                "topic": topic,
                "partition": partition,
                "first": first,
                "end": part.end,
            }
            page = decode_page(self.api.call("GET", "/tail", asked))
            if page.following <= first:
                raise ReadFailed(
                    f"the log of `{topic}`, partition {partition}, ends at {page.following} and "
                    f"ended at {part.end} when the read was planned; load the DataFrame again "
                    "[read-incomplete]"
                )
            for _, value in page.records:
                yield rows.kept(decode(value)).select(columns)
            first = Offset(page.following)


class RemoteFile(RangedFile):
    """A file of history."""

    def __init__(self, api: ReadApi, key: str, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self._api, self._key = api, key

    def fetch(self, first: int, size: int) -> bytes:
        """Return a range in as many calls as the API needs for its size."""
        return b"".join(
            self._api.call(
                "GET",
                "/file",
                {"key": self._key, "first": start, "size": min(RANGE_BYTES, first + size - start)},
            )
            for start in range(first, first + size, RANGE_BYTES)
        )


@lru_cache(maxsize=4)
def _client(url: str) -> httpx.Client:
    """Return the client of this process, which keeps its connections."""
    return httpx.Client(base_url=url.rstrip("/"), timeout=TIMEOUT_S)
