"""Read a request for training data and check it against a version of a branch.

The body is what the client's `query_offline` sends. Everything that is wrong is reported at once,
and what has no effect is refused or named in a warning. The checks are those of `query`, and those
of times: the rows need a column of them, and a value without a time is a failed row of the result,
because pandas writes a missing time as text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

import msgspec
import polars as pl

from fennel_core.offline.api_errors import OfflineBodyMalformed, OfflineQueryInvalid
from fennel_core.offline.errors import OfflineError
from fennel_core.offline.planned_query import PlannedQuery
from fennel_core.offline.rows import AT
from fennel_core.offline.s3_places import (
    AS_PARQUET,
    INPUT,
    NO_KEYS,
    NO_PLACES,
    NOT_SORTED,
    OUTPUT,
    ConnectorTable,
    PlaceKeys,
    PlaceProblem,
    PlaceRules,
    S3Input,
    S3Source,
    S3Target,
    is_default,
    keys_of,
    parse,
    source_of,
    source_problems,
    target_problems,
)
from fennel_core.plans.feature_index import FeatureIndex
from fennel_core.query.bodies import DEFAULT_WORKFLOW, SURROGATE, WORKFLOW_CHARS
from fennel_core.query.columns import QueryColumn
from fennel_core.query.errors import QueryError
from fennel_core.query.values import input_column
from fennel_core.query.view import View
from fennel_core.vocab.dtypes import Timestamp, optional
from fennel_core.vocab.ids import FeaturesetName
from fennel_core.vocab.problems import Problem
from fennel_core.wire.entities import FeatureRef

CODE: Final = "offline-query-invalid"
NO_TIME_TEXTS: Final = frozenset({"NaT", "nan", "NaN", "None", "<NA>", ""})
"""What pandas writes for a missing time when times become text."""
COLUMNS, FILES = "Pandas", "S3"
NO_DPUS: Final = (
    "`num_dpus` has no effect: the query runs on the Spark of this platform (Airflow's connection "
    "`spark_default`)"
)
ONE_VERSION: Final = "`use_v2` has no effect: there is one way to compute an offline query"


class OfflineBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /query_offline`."""

    input_features: tuple[str, ...]
    output_features: tuple[str, ...]
    input: dict[str, Any]
    timestamp_column: str
    s3_output: Any = None
    use_v2: bool = True
    workflow: str | None = None
    num_dpus: float | None = None


@dataclass(frozen=True, slots=True)
class CheckedOfflineQuery:
    """A request that can be computed. `rows`: `AT` and the inputs by name, in order; none if they
    are in the files of `source`. `needed`: the inputs that are read.
    """

    planned: PlannedQuery

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    timestamp_column: str
    workflow: str
    rows: pl.DataFrame
    warnings: tuple[str, ...]
    needed: tuple[str, ...] = ()
    source: S3Source | None = None
    target: S3Target | None = None
    keys: PlaceKeys = NO_KEYS

    @property
    def bounds(self) -> tuple[int | None, int | None]:
        """The earliest and the latest time of a row, in microseconds; None if it is not known."""
        return (None, None) if self.source else _bounds(self.rows[AT])


def parse_body(body: bytes) -> OfflineBody:
    """Parse a body; bare `NaN` is accepted, as pandas sends it. Raises `OfflineBodyMalformed`."""
    try:
        return msgspec.json.decode(body, type=OfflineBody)
    except msgspec.ValidationError as wrong:
        raise OfflineBodyMalformed(f"malformed body: {wrong}") from wrong
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _parse_slowly(body)


def _parse_slowly(body: bytes) -> OfflineBody:
    try:
        found = json.loads(body)
        if SURROGATE in body.lower():
            # Python parses half of a surrogate pair as text, which cannot be stored.
            msgspec.json.encode(found)
        return msgspec.convert(found, OfflineBody)
    except msgspec.ValidationError as wrong:
        raise OfflineBodyMalformed(f"malformed body: {wrong}") from wrong
    except (ValueError, RecursionError) as wrong:
        raise OfflineBodyMalformed(f"the body is not JSON: {wrong}") from wrong


def check_request(
    body: OfflineBody, view: View, now: datetime, places: PlaceRules = NO_PLACES
) -> CheckedOfflineQuery:
    """Return the request, checked against a version. `places`: what it may name.

    Raises `OfflineQueryInvalid`.
    """
    checks = _Checks(places)
    checks.options(body)
    planned = checks.plan(body, view)
    rows = checks.rows(body, planned, view.index)
    if checks.problems:
        raise OfflineQueryInvalid(checks.problems)
    assert planned is not None, "a query without a plan has a problem"
    source, target = checks.source, checks.target
    warnings = [*_warnings(body), *_place_warnings(source, target)]
    if source is None:
        warnings += _short_histories(planned, rows, now)
    return CheckedOfflineQuery(
        planned,
        body.input_features,
        body.output_features,
        body.timestamp_column,
        body.workflow or DEFAULT_WORKFLOW,
        rows,
        tuple(warnings),
        tuple(_inputs(planned)),
        None if source is None else source_of(source),
        None if target is None else S3Target(target.bucket, target.path_prefix),
        PlaceKeys(keys_of(None if source is None else source.s3_table), keys_of(target)),
    )


@dataclass(slots=True)
class _Checks:
    """Collects problems, and the places of the request."""

    places: PlaceRules
    problems: list[Problem] = field(default_factory=list)
    source: S3Input | None = None
    target: ConnectorTable | None = None

    def _wrong(self, entity: str, text: str) -> None:
        self.problems.append(Problem(CODE, entity, text))

    def options(self, body: OfflineBody) -> None:
        if body.s3_output is not None:
            match parse(ConnectorTable, body.s3_output, OUTPUT):
                case PlaceProblem() as wrong:
                    self._place_problems([wrong])
                case target:
                    self.target = target
                    self._place_problems(target_problems(target, self.places))
        if len(body.workflow or "") > WORKFLOW_CHARS:
            self._wrong("workflow", f"it has more than {WORKFLOW_CHARS} characters; use fewer")

    def _place_problems(self, found: Iterable[PlaceProblem]) -> None:
        for each in found:
            self._wrong(each.entity, each.text)

    def _source(self, body: OfflineBody) -> None:
        if set(body.input) != {FILES}:
            self._wrong("input", f"it must have one field, `{COLUMNS}` or `{FILES}`")
            return
        match parse(S3Input, body.input[FILES], INPUT):
            case PlaceProblem() as wrong:
                self._place_problems([wrong])
            case source:
                self.source = source
                self._place_problems(source_problems(source, self.places))
                names = source.feature_to_column_map or {}
                for name in [n for n in names if n not in body.input_features]:
                    self._wrong(name, "`feature_to_column_map` names no input; correct its name")

    def plan(self, body: OfflineBody, view: View) -> PlannedQuery | None:
        """Return the plan; None with problems."""
        before = len(self.problems)
        if not body.output_features:
            self._wrong("outputs", "no feature is asked for; name at least one")
        for name in (*body.input_features, *body.output_features):
            if not _is_known(name, view.index):
                self._wrong(name, "the branch has no such feature; commit it or correct the name")
        if len(self.problems) > before:
            return None
        try:
            planned = PlannedQuery.of(view, (body.input_features, body.output_features))
            planned.jobs()
        except (QueryError, OfflineError) as refused:
            self.problems.append(Problem(refused.code, "query", str(refused)))
            return None
        if body.timestamp_column in {output.ref.fqn for output in planned.plan.outputs}:
            self._wrong(
                body.timestamp_column,
                "the timestamp column has the name of an output; rename the column",
            )
        return planned

    def rows(
        self, body: OfflineBody, planned: PlannedQuery | None, index: FeatureIndex
    ) -> pl.DataFrame:
        """Return the typed rows; without meaning if there are problems."""
        columns = self._columns(body)
        if columns is None:
            return pl.DataFrame()
        times = columns.get(body.timestamp_column)
        found: dict[str, pl.Series] = {}
        if times is None:
            self._wrong(body.timestamp_column, "the input has no such timestamp column; add it")
        else:
            name, dtype = body.timestamp_column, optional(Timestamp())
            times = without_no_times(times)
            typed = self._converted(name, partial(input_column, times, dtype, name))
            if typed is not None:
                found[AT] = typed.series
        wanted = body.input_features if planned is None else tuple(_inputs(planned))
        for name in dict.fromkeys(wanted):
            ref = _ref(name)
            if ref not in index.features:
                continue
            if name not in columns:
                self._wrong(name, "the input feature has no column; add it to the rows")
                continue
            convert = partial(input_column, columns[name], index.features[ref].dtype, name)
            typed = self._converted(name, convert)
            if typed is not None:
                found[name] = typed.series
        return pl.DataFrame([series.alias(name) for name, series in found.items()])

    def _columns(self, body: OfflineBody) -> Mapping[str, Sequence[Any]] | None:
        if FILES in body.input:
            self._source(body)
            return None
        columns = body.input.get(COLUMNS)
        if set(body.input) != {COLUMNS} or not isinstance(columns, dict):
            self._wrong("input", f"it must have one field, `{COLUMNS}`: columns of values by name")
            return None
        for name, values in columns.items():
            if not isinstance(values, list):
                self._wrong(name, "a column must be a list of values")
                return None
        lengths = {name: len(values) for name, values in columns.items()}
        if len(set(lengths.values())) > 1:
            self._wrong("input", f"the columns must be equally long, but have {lengths} values")
            return None
        if not any(lengths.values()):
            self._wrong("input", "it has no rows; send at least one")
            return None
        return columns

    def _converted(self, name: str, convert: Callable[[], QueryColumn]) -> QueryColumn | None:
        try:
            return convert()
        except QueryError as wrong:
            self._wrong(name, str(wrong))
            return None


def _ref(name: str) -> FeatureRef:
    featureset, _, feature = name.partition(".")
    return FeatureRef(FeaturesetName(featureset), feature)


def _is_known(name: str, index: FeatureIndex) -> bool:
    return _ref(name) in index.features if "." in name else name in index.featuresets


def _inputs(planned: PlannedQuery) -> Iterator[str]:
    return (name for name, _, _ in planned.program().inputs)


def without_no_times(values: Sequence[Any]) -> list[Any]:
    """Return times with null in place of what pandas writes for none."""
    return [None if isinstance(v, str) and v in NO_TIME_TEXTS else v for v in values]


def _warnings(body: OfflineBody) -> Iterator[str]:
    if body.num_dpus is not None:
        yield NO_DPUS
    if not body.use_v2:
        yield ONE_VERSION


def _place_warnings(source: S3Input | None, target: ConnectorTable | None) -> Iterator[str]:
    if source is not None and source.s3_table.pre_sorted:
        yield NOT_SORTED
    if target is not None and is_default(target.format):
        yield AS_PARQUET


def _short_histories(planned: PlannedQuery, rows: pl.DataFrame, now: datetime) -> Iterator[str]:
    """Yield a warning per dataset whose `history` is shorter than the times of rows."""
    earliest, _ = _bounds(rows[AT])
    if earliest is None:
        return
    for table in planned.tables.values():
        kept = table.view.history_us
        if kept and _micros(now) - kept > earliest:
            span = timedelta(microseconds=kept)
            yield (
                f"dataset `{table.view.name}` keeps {span} of history, and rows have earlier "
                "times: their features may lack what was removed. Raise its `history`"
            )


def _bounds(times: pl.Series) -> tuple[int | None, int | None]:
    values = times.drop_nulls().to_physical()
    if values.is_empty():
        return None, None
    return int(values.min()), int(values.max())  # type: ignore[arg-type]  # integers


def _micros(at: datetime) -> int:
    return int(at.timestamp() * 1_000_000)
