"""What the author of a failed commit learns."""

from __future__ import annotations

from fennel_core.ledger.commit_failure import reject_commit
from fennel_core.ledger.transitions import stored_error
from fennel_core.vocab.errors import ApiError
from fennel_core.vocab.problems import Problem
from tests.support.ledger_world import World


async def test_a_commit_that_another_process_rejects_answers_with_all_problems_as_data() -> None:
    world = World()
    await world.open()
    id_ = await world.receive("first")
    problems = (Problem("cdc-keys", "Orders", "one"), Problem("schema", "Users", "two"))
    await reject_commit(world.context(), id_, ApiError(500, "definitions-invalid", "2", problems))
    error = stored_error(world.ledger.state.commits[id_])
    assert (error.status, error.code, error.problems) == (500, "definitions-invalid", problems)
