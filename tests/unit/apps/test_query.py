"""The query server ends by one deadline."""

from __future__ import annotations

import pytest

from fennel_core.apps.query_worker import rest_of_grace_s


@pytest.mark.parametrize(
    ("grace_s", "stopping_s", "rest_s"),
    [(20.0, 0.0, 17.0), (20.0, 5.0, 12.0), (20.0, 17.0, 0.0), (20.0, 19.0, 0.0), (2.0, 0.5, 1.0)],
)
def test_requests_and_the_query_log_share_the_time_until_the_process_is_killed(
    grace_s: float, stopping_s: float, rest_s: float
) -> None:
    assert rest_of_grace_s(grace_s, stopping_s) == rest_s
