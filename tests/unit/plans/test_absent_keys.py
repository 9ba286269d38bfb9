"""The values of a lookup for a key without rows in an aggregated dataset."""

from dataclasses import replace

import pytest

from fennel_core.plans.absent_keys import NULL, AbsentValue, absent_rows
from fennel_core.vocab.dtypes import Date, Decimal, Dtype, Float, Int, List, Optional, Timestamp
from fennel_core.wire import operators as ops
from fennel_core.wire.entities import Pipeline, SyncRequest
from fennel_core.wire.operators import Aggregate, DatasetRef, Emit, Forever, Operator
from tests.support.featuresets import CODE, META, USERS, dataset, request

W = Forever()


def committed(dtype: Dtype, spec: ops.Spec, *, pipeline: str = "p") -> SyncRequest:
    """Commit `Totals` with one value field `v`, computed by `spec` in pipeline `p`.

    `pipeline` is the pipeline that the commit selected.
    """
    totals = dataset("Totals", {"uid": Int()}, {"v": dtype})
    base = request({}, [], [USERS, totals])
    kind = Aggregate("Users", ("uid",), (spec,), None, Emit.EAGER)
    return replace(
        base,
        pipelines=(Pipeline(pipeline, totals.name, 1, (USERS.name,), CODE, META),),
        operators=(
            Operator("Users", totals.name, 1, "p", False, DatasetRef(USERS.name)),
            Operator("agg", totals.name, 1, "p", True, kind),
        ),
    )


@pytest.mark.parametrize(
    ("dtype", "spec", "empty"),
    [
        (Int(), ops.Count("v", W, None, False, False, False), AbsentValue(0, declared=False)),
        (Int(), ops.Sum("v", W, "age"), AbsentValue(0, declared=False)),
        (Float(), ops.Sum("v", W, "age"), AbsentValue(0.0, declared=False)),
        (Decimal(2), ops.Sum("v", W, "age"), AbsentValue("0.00", declared=False)),
        (Float(), ops.ExpDecay("v", W, "age", 10), AbsentValue(0.0, declared=False)),
        (List(Int()), ops.LastK("v", W, "age", 3, False, False), AbsentValue((), declared=False)),
        (List(Int()), ops.Distinct("v", W, "age", False), AbsentValue((), declared=False)),
        (Float(), ops.Average("v", W, "age", -1.0), AbsentValue(-1.0, declared=True)),
        (Optional(Float()), ops.Average("v", W, "age", None), NULL),
        (Int(), ops.Min("v", W, "age", 7.0), AbsentValue(7, declared=True)),
        (Timestamp(), ops.Max("v", W, "ts", 1e6), AbsentValue(1_000_000, declared=True)),
        (Date(), ops.Max("v", W, "ts", 3.0), AbsentValue(3, declared=True)),
        (Decimal(1), ops.Min("v", W, "age", 2.5), AbsentValue("2.5", declared=True)),
        (Optional(Float()), ops.Quantile("v", W, "age", 0.5, None, True), NULL),
        (Float(), ops.Stddev("v", W, "age", -1.0), AbsentValue(-1.0, declared=True)),
    ],
)
def test_an_aggregation_of_nothing_has_its_empty_value(
    dtype: Dtype, spec: ops.Spec, empty: AbsentValue
) -> None:
    assert absent_rows(committed(dtype, spec))["Totals"] == (empty,)


def test_other_datasets_have_nulls_for_an_absent_key() -> None:
    rows = absent_rows(committed(Int(), ops.Sum("v", W, "age")))
    assert rows[USERS.name] == (NULL, NULL)


def test_operators_of_deselected_pipelines_are_ignored() -> None:
    assert absent_rows(committed(Int(), ops.Sum("v", W, "age"), pipeline="other"))["Totals"] == (
        NULL,
    )
