"""Requests for training data are checked like queries, and every problem is reported at once."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from pydantic import SecretStr

from fennel_core.offline.api_errors import OfflineBodyMalformed, OfflineQueryInvalid
from fennel_core.offline.request_body import CheckedOfflineQuery, check_request, parse_body
from fennel_core.offline.rows import AT
from fennel_core.offline.s3_places import BucketKeys, PlaceKeys, PlaceRules, S3Source, S3Target
from tests.laws.offline.worlds import USERS
from tests.support.offline_requests import GOOD, view

NOW = datetime(2026, 1, 1, tzinfo=UTC)


RULES = PlaceRules("own", frozenset({"shared"}), sealable=True)
KEYS = {"access_key": "someone", "secret_key": "hidden"}


def table(
    keys: dict[str, str] | None = KEYS, role: str | None = None, **changes: Any
) -> dict[str, Any]:
    """Return a table of the client's S3 connector."""
    account = {"S3": {"creds": keys, "role_arn": role}}
    return {
        "bucket": "theirs",
        "path_prefix": "training/",
        "pre_sorted": False,
        "format": "parquet",
        "db": {"name": "extract_historical_s3_input", "db": account},
    } | changes


def s3_input(
    columns: dict[str, str] | None = None, compression: str = "None", **changes: Any
) -> dict[str, Any]:
    made = {"s3_table": table(**changes), "compression": compression}
    return {"S3": made | ({} if columns is None else {"feature_to_column_map": columns})}


def checked(rules: PlaceRules = RULES, **changes: Any) -> CheckedOfflineQuery:
    return check_request(parse_body(msgspec.json.encode(GOOD | changes)), view(), NOW, rules)


def problems(**changes: Any) -> dict[str, str]:
    """Return the text of each problem by what it is about."""
    with pytest.raises(OfflineQueryInvalid) as refused:
        checked(**changes)
    assert all(each.text in refused.value.text for each in refused.value.problems)
    return {each.entity: each.text for each in refused.value.problems}


def test_the_body_of_the_client_becomes_typed_rows_with_a_time_each() -> None:
    asked = checked()
    assert asked.rows.columns[0] == AT
    assert asked.rows[AT].to_physical().to_list() == [1_000_000, None], "NaT is no time"
    assert asked.bounds == (1_000_000, 1_000_000)
    assert (asked.workflow, asked.warnings) == ("default", ())


def test_bare_nan_is_accepted_as_pandas_sends_it() -> None:
    body = msgspec.json.encode(GOOD | {"output_features": ["F.s"]}).replace(b"null,3", b"NaN,3.0")
    assert b"NaN" in body
    asked = check_request(parse_body(body), view(), NOW)
    assert asked.rows["F.n"].to_list() == [None, 3]


def test_options_without_effect_are_named() -> None:
    asked = checked(num_dpus=10, use_v2=False)
    assert [each.split()[0] for each in asked.warnings] == ["`num_dpus`", "`use_v2`"]


def test_all_problems_are_reported_at_once() -> None:
    columns = {"F.k": ["one", 2], "other": [1, 2]}
    found = problems(
        output_features=["F.v", "F.unknown", "Nothing"],
        input={"Pandas": columns},
        s3_output={"bucket": "b"},
    )
    assert set(found) == {"output_s3", "F.unknown", "Nothing", "at", "F.k", "F.n"}
    assert "type `int`" in found["F.k"]
    assert "timestamp column" in found["at"]


@pytest.mark.parametrize(
    ("changes", "entity", "text"),
    [
        ({"input": {"S3": {}}}, "input_s3", "missing required field `s3_table`"),
        (
            {"input": {"S3": {"s3_table": table()}, "Pandas": {}}},
            "input",
            "one field, `Pandas` or `S3`",
        ),
        ({"input": s3_input(bucket="own")}, "input_s3", "the platform's own"),
        ({"input": s3_input(bucket="")}, "input_s3", "needs a bucket and a prefix"),
        ({"input": s3_input(path_prefix="/")}, "input_s3", "needs a bucket and a prefix"),
        ({"input": s3_input(keys=None)}, "input_s3", "FENNEL_OFFLINE_SHARED_BUCKETS"),
        ({"input": s3_input(keys=None, role="arn:x")}, "input_s3", "roles are not assumed"),
        ({"input": s3_input(format="delta")}, "input_s3", "csv, json, parquet"),
        ({"input": s3_input(format={"csv": {"delimiter": 34}})}, "input_s3", "delimiter"),
        (
            {"input": s3_input(format={"csv": {"delimiter": 44, "headers": ["a", "a"]}})},
            "input_s3",
            "each once",
        ),
        ({"input": s3_input(compression="gzip")}, "input_s3", "uncompressed"),
        ({"input": s3_input(columns={"F.z": "z"})}, "F.z", "names no input"),
        ({"s3_output": table(format="json")}, "output_s3", "format='parquet'"),
        ({"s3_output": table(bucket="own")}, "output_s3", "the platform's own"),
        ({"s3_output": table(extra=1)}, "output_s3", "unknown field `extra`"),
        ({"input": {}}, "input", "must have one field"),
        ({"input": {"Pandas": {"F.k": [1], "at": []}}}, "input", "equally long"),
        ({"input": {"Pandas": {"F.k": [], "at": []}}}, "input", "no rows"),
        ({"input": {"Pandas": {"F.k": 1}}}, "F.k", "must be a list"),
        ({"output_features": []}, "outputs", "at least one"),
        ({"workflow": "x" * 201}, "workflow", "200"),
        ({"input_features": ["F.n"]}, "query", "F.k"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(
    changes: dict[str, Any], entity: str, text: str
) -> None:
    assert text in problems(**changes)[entity]


def test_rows_may_be_in_a_bucket_and_the_result_in_another() -> None:
    asked = checked(
        input=s3_input(columns={"F.k": "k"}, format={"csv": {"delimiter": 59}}, pre_sorted=True),
        s3_output=table(bucket="shared", keys=None, format={"csv": {"delimiter": 44}}),
        timestamp_column="made_at",
    )
    assert asked.source == S3Source("theirs", "training/", "csv", {"F.k": "k"}, ";")
    assert asked.target == S3Target("shared", "training/")
    assert asked.target.folder("q1") == "training/q1/"
    assert asked.keys == PlaceKeys(BucketKeys("someone", SecretStr("hidden")), None)
    assert "hidden" not in repr(asked)
    assert (asked.bounds, asked.rows.height, asked.needed) == ((None, None), 0, ("F.k",))
    assert [each.split()[0] for each in asked.warnings] == ["`presorted`", "the"]


def test_keys_are_refused_where_they_cannot_be_sealed() -> None:
    with pytest.raises(OfflineQueryInvalid, match="FENNEL_SECRETS_KEY_FILE") as refused:
        checked(PlaceRules("own"), s3_output=table())
    assert "hidden" not in refused.value.text


def test_a_wrong_place_is_refused_without_its_keys() -> None:
    assert "hidden" not in str(problems(s3_output=table(keys=KEYS | {"other": "hidden"})))


def test_a_time_that_is_none_is_refused_with_its_column() -> None:
    columns = {"F.k": [1], "F.n": [1], "at": ["soon"]}
    assert "soon" in problems(input={"Pandas": columns})["at"]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"a":1}', b'"\\ud800"', b'{"a":' * 2000, b"\xff", b"NaN"]
)
def test_a_malformed_body_is_refused(body: bytes) -> None:
    with pytest.raises(OfflineBodyMalformed):
        parse_body(body)


def test_a_history_that_is_shorter_than_the_times_is_a_warning() -> None:
    known = view()
    users = known.tables[USERS.name]
    days = int(timedelta(days=30) / timedelta(microseconds=1))
    kept = replace(users, view=replace(users.view, history_us=days))
    shortened = replace(known, tables={**known.tables, USERS.name: kept})
    asked = check_request(parse_body(msgspec.json.encode(GOOD)), shortened, NOW)
    assert [each.split()[1] for each in asked.warnings] == ["`Users`"]
