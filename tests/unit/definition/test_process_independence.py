"""What a commit creates depends on its definitions, not on the process that compiles them."""

from __future__ import annotations

from fennel_core.wire.gen import services_pb2
from tests.support.definition_world import CommitServerWorld, changed, recorded, request

OPERATORS = recorded("operators")


def another_message(message: services_pb2.SyncRequest) -> None:
    message.message = "another message"


async def test_another_number_of_partitions_in_the_settings_changes_no_existing_asset() -> None:
    server = await CommitServerWorld.open()
    await server.commits.commit(request(OPERATORS))
    topics = dict(server.world.topics.partition_counts)
    assert set(topics.values()) == {2}
    upgraded = CommitServerWorld(server.world, partitions_setting=8)
    body = changed(OPERATORS, another_message)
    preview = (await upgraded.steps.preview(request(body))).lines
    assert (await upgraded.commits.commit(request(body))).lines == preview
    assert ", 0 adopted, 0 released, 0 destroyed" in preview[-1]
    assert preview[-1].startswith("assets: 0 created")
    assert server.world.topics.partition_counts == topics


async def test_a_new_dataset_gets_the_number_of_partitions_of_its_workspace() -> None:
    server = await CommitServerWorld.open()
    await server.commits.commit(request(recorded("featuresets")))
    upgraded = CommitServerWorld(server.world, partitions_setting=8)
    before = set(server.world.topics.partition_counts)
    await upgraded.commits.commit(request(OPERATORS))
    new = set(server.world.topics.partition_counts) - before
    assert new
    assert {server.world.topics.partition_counts[topic] for topic in new} == {2}
