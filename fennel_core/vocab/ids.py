"""Ids as distinct types, so that the type checker distinguishes a job from an asset."""

from typing import NewType

WorkspaceId = NewType("WorkspaceId", str)
"""A tenant. Names of its topics, state and objects start with it."""
BranchName = NewType("BranchName", str)
DatasetName = NewType("DatasetName", str)
FeaturesetName = NewType("FeaturesetName", str)
CommitId = NewType("CommitId", str)
Identity = NewType("Identity", str)
"""Merkle hash (hex) of a blueprint: its logic and the identities of its inputs."""
AssetId = NewType("AssetId", str)
"""`<kind>.<identity>.<incarnation>`: the name of a physical asset, never used twice."""
JobId = NewType("JobId", str)
"""The asset id of a job."""
TopicName = NewType("TopicName", str)
InstallationId = NewType("InstallationId", str)
SlotId = NewType("SlotId", str)
"""One process of a slot."""
SlotName = NewType("SlotName", str)
"""`<engine>-<number>`: the same for all processes of a slot."""
EngineId = NewType("EngineId", str)
PartitionIndex = NewType("PartitionIndex", int)
Epoch = NewType("Epoch", int)
"""Ownership epoch of a job partition. Each claim raises it by compare-and-set; never reused."""
Offset = NewType("Offset", int)
Micros = NewType("Micros", int)
"""Microseconds since 1970-01-01 UTC: the unit of event time inside the platform."""
Millis = NewType("Millis", int)

JobPartition = tuple[JobId, PartitionIndex]
"""One partition of a job: the unit that a slot owns, snapshots and restores."""
TopicPartition = tuple[TopicName, PartitionIndex]
"""One partition of a Kafka topic."""


def partition_indexes(count: int) -> list[PartitionIndex]:
    """Return the indexes of `count` partitions."""
    return [PartitionIndex(index) for index in range(count)]


MAIN_BRANCH = BranchName("main")
