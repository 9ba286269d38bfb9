"""Sinks of a dataset, as a catalog has them."""

from __future__ import annotations

from fennel_core.blueprints.spec import SinkBinding
from fennel_core.graph.sink_places import SinkTable
from fennel_core.vocab.ids import DatasetName, TopicName
from fennel_core.wire.connectors import Cdc, Http, HttpPath, PlainSecret, Sink
from tests.support.sink_world import USERS

USERS_TOPIC = TopicName("w.topic.users.1")


def hooks(path: str) -> HttpPath:
    """Return a path of an endpoint."""
    return HttpPath(
        Http("hooks", PlainSecret("https://a.example"), "/health", None), path, None, ()
    )


def bound(name: TopicName, table: SinkTable) -> SinkBinding:
    """Return the sink `name` of the dataset `Users`."""
    users = DatasetName("Users")
    sink = Sink(users, 1, table, Cdc.DEBEZIUM, None, None, False, False, (), None, None)
    return SinkBinding(name, sink, users, USERS, (), USERS_TOPIC)
