"""When a failed item of reconcile is tried again."""

from __future__ import annotations

from fennel_core.ledger.backoff import FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS, BackOff


def test_the_delay_doubles_up_to_a_limit_and_a_success_ends_it() -> None:
    items: BackOff[str] = BackOff()
    now, delays = 0.0, []
    for _ in range(12):
        assert items.is_due("poisoned", now)
        failure = items.failed("poisoned", now, "bad")
        assert not items.is_due("poisoned", now)
        delays.append(failure.next_at - now)
        now = failure.next_at
    assert delays[:3] == [FIRST_DELAY_SECONDS, 2 * FIRST_DELAY_SECONDS, 4 * FIRST_DELAY_SECONDS]
    assert delays[-1] == MAX_DELAY_SECONDS
    items.succeeded("poisoned")
    assert not items.failures
    assert items.is_due("poisoned", 0.0)


def test_a_failing_item_delays_no_other() -> None:
    items: BackOff[str] = BackOff()
    items.failed("poisoned", 0.0, "bad")
    assert items.is_due("healthy", 0.0)


def test_an_item_that_needs_no_work_any_more_is_forgotten() -> None:
    items: BackOff[str] = BackOff()
    items.failed("gone", 0.0, "bad")
    items.failed("kept", 0.0, "bad")
    items.keep_only({"kept"})
    assert set(items.failures) == {"kept"}
