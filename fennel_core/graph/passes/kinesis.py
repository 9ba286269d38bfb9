"""Which streams of Kinesis the platform reads, and with which connectors."""

from __future__ import annotations

from collections.abc import Iterator

from fennel_core.graph.entity_graph import Graph
from fennel_core.vocab.aws_arns import ROLE_ARN, STREAM_ARN
from fennel_core.vocab.problems import Problem
from fennel_core.wire import connectors as c


def check_starts(graph: Graph) -> Iterator[Problem]:
    """Yield a problem for each stream that two datasets begin to read elsewhere: it has one reader.

    Where a stream is read already, the position counts, and neither of them.
    """
    first: dict[tuple[str, str], c.InitPosition] = {}
    for source in graph.sources:
        table = source.table
        if not isinstance(table, c.KinesisStream):
            continue
        other = first.setdefault((table.db.name, table.stream_arn), table.init_position)
        if other != table.init_position:
            text = (
                f"Dataset `{source.dataset}` reads Kinesis stream `{table.stream_arn}` of "
                f"connector `{table.db.name}` with another `init_position` than another dataset; a "
                "stream is read once, so give both the same, or connectors of two names"
            )
            yield Problem("connector-redefined", source.dataset, text)


def unusable_stream(table: c.KinesisStream) -> Iterator[str]:
    """Yield what about a stream cannot be served, as the end of a sentence about its connector."""
    if isinstance(table.db, c.NamedReference) or not table.db.role_arn:
        yield (
            "has no role, and connectors of Kinesis are not stored by name; define it with "
            "`role_arn` in the code"
        )
        return
    if ROLE_ARN.fullmatch(table.db.role_arn) is None:
        yield (
            f"has the role `{table.db.role_arn}`, which is not the ARN of a role; write "
            "`arn:aws:iam::123456789012:role/name`"
        )
    if STREAM_ARN.fullmatch(table.stream_arn) is None:
        yield (
            f"has the stream `{table.stream_arn}`, which is not the ARN of a stream; write "
            "`arn:aws:kinesis:us-east-1:123456789012:stream/name`"
        )
    if table.format != "json":
        yield f"has the format `{table.format}`; records are read as `json`"
