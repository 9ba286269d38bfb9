"""What could not be evaluated: it is isolated, logged once, and counted.

An expectation whose rule raises for a batch is left out of the counts of that batch, and the others
are counted. A partition that cannot be evaluated keeps its offset, so it is repeated by the next
pass, and the others go on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from fennel_core.data_quality.suites import Suites, TopicExpectations
from fennel_core.expectations.errors import first_line
from fennel_core.telemetry.logs import logger
from fennel_core.vocab.ids import TopicName, TopicPartition

log = logger(__name__)


@dataclass(slots=True)
class Failures:
    """The failures of one process. An expectation stays one of them until no branch has it."""

    expectations: set[tuple[TopicName, str]] = field(default_factory=set)
    """By topic and digest."""
    partitions: set[TopicPartition] = field(default_factory=set)

    def keep_only(self, suites: Suites, partitions: Collection[TopicPartition]) -> None:
        """Forget what no branch has any more."""
        self.expectations &= {(topic, d) for topic, each in suites.items() for d in each.expected}
        self.partitions &= set(partitions)

    def evaluated(
        self, source: TopicPartition, suite: TopicExpectations, raised: Mapping[str, BaseException]
    ) -> None:
        """Keep that a partition was evaluated, except for expectations that raised."""
        self.partitions.discard(source)
        for digest in sorted(raised):
            if (source[0], digest) in self.expectations:
                continue
            self.expectations.add((source[0], digest))
            log.error(
                "an expectation was not evaluated for some rows",
                workspace=suite.workspace,
                dataset=suite.dataset,
                expectation=suite.expected[digest].kind,
                arguments=suite.expected[digest].arguments,
                reason=first_line(raised[digest]),
            )

    def failed(
        self, source: TopicPartition, suite: TopicExpectations, error: BaseException
    ) -> None:
        """Keep that a partition could not be evaluated."""
        if source in self.partitions:
            return
        self.partitions.add(source)
        log.error(
            "the expectations of a partition were not evaluated; retrying",
            workspace=suite.workspace,
            dataset=suite.dataset,
            topic=source[0],
            part=source[1],
            exc_info=error,
        )
