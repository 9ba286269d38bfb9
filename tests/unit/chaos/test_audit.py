"""The recompute of the chaos audit, and the plan of faults."""

from collections import Counter

from tests.chaos.audit import recompute
from tests.chaos.connectors import KINDS
from tests.chaos.strikes import TRAFFIC_KINDS, plan_strikes
from tests.chaos.traffic import Rows


def test_orders_join_the_versions_of_their_own_time_and_count_once() -> None:
    requests = [
        {"endpoint": "customers", "rows": [{"uid": 1, "city": "a", "at": 10}]},
        {"endpoint": "customers", "rows": [{"uid": 1, "city": "b", "at": 20}]},
        {"endpoint": "cities", "rows": [{"city": "a", "country": "x", "at": 5}]},
        {"endpoint": "cities", "rows": [{"city": "b", "country": "y", "at": 30}]},
        {"endpoint": "orders", "rows": [{"oid": 1, "uid": 1, "amount": 5, "at": 15}]},
        {"endpoint": "orders", "rows": [{"oid": 1, "uid": 1, "amount": 5, "at": 15}]},
        {"endpoint": "orders", "rows": [{"oid": 2, "uid": 1, "amount": 7, "at": 25}]},
        {"endpoint": "orders", "rows": [{"oid": 3, "uid": 1, "amount": 9, "at": 35}]},
        {"endpoint": "orders", "rows": [{"oid": 4, "uid": 2, "amount": 1, "at": 35}]},
    ]
    assert recompute(requests) == {
        ("Customer", "uid"): {1: {"city": "b"}},
        ("City", "city"): {"a": {"country": "x"}, "b": {"country": "y"}},
        ("Spending", "uid"): {1: {"orders": 2, "spent": 14}},
        ("Turnover", "country"): {
            "x": {"orders": 1, "spent": 5},
            "y": {"orders": 1, "spent": 9},
        },
    }


def test_every_kind_is_struck_equally_often_and_the_seed_determines_the_plan() -> None:
    for kinds in (TRAFFIC_KINDS, KINDS):
        plan = plan_strikes(3, 330.0, 110, kinds)
        assert plan == plan_strikes(3, 330.0, 110, kinds)
        counts = Counter(strike.kind for strike in plan)
        assert counts.keys() == set(kinds)
        assert max(counts.values()) - min(counts.values()) <= 1
        assert [strike.at_s for strike in plan] == sorted(strike.at_s for strike in plan)
        assert any(strike.frozen_s is None for strike in plan)
        assert any(strike.frozen_s is not None for strike in plan)


def test_no_two_rows_have_the_same_time() -> None:
    rows = Rows(1)
    times = [row["at"] for _ in range(500) for row in rows.request()[1]]
    assert len(times) == len(set(times))
