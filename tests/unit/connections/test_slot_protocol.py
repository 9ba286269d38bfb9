"""Every refusal code has a reaction."""

import pytest

from fennel_core.connections.frames import RemoteError
from fennel_core.connections.slot_protocol import Reaction, RefusalCode, reaction_to


@pytest.mark.parametrize(
    ("code", "reaction"),
    [
        (RefusalCode.NOT_OWNER, Reaction.RETRY_AT_OWNER),
        (RefusalCode.PARKED, Reaction.REPORT_PARKED),
        (RefusalCode.UNKNOWN_OPERATION, Reaction.FAIL),
        (RefusalCode.OVERLOADED, Reaction.RETRY_AT_OWNER),
        (RefusalCode.FAILED, Reaction.FAIL),
        (RefusalCode.RESULT_TOO_LARGE, Reaction.FAIL),
        ("a-code-of-a-newer-release", Reaction.FAIL),
    ],
)
def test_a_refusal_code_has_one_reaction(code: str, reaction: Reaction) -> None:
    assert reaction_to(RemoteError(str(code), "text")) is reaction


def test_no_refusal_code_is_left_without_a_test() -> None:
    assert {code.value for code in RefusalCode} == {
        *("not-owner", "parked", "unknown-op", "overloaded", "failed", "result-too-large"),
    }
