"""Buckets of a user in a request: where its rows are, and where its result is wanted.

The client sends a place as a table of its S3 connector. What a table can say and this platform does
not do is refused by name. Keys of a bucket are sealed before they are stored (`s3_keys`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec
from pydantic import SecretStr

INPUT, OUTPUT = "input_s3", "output_s3"
NOT_SORTED: Final = (
    "`presorted` of `input_s3` has no effect: rows are numbered by file and position"
)
AS_PARQUET: Final = "the result is written as Parquet; pass `format='parquet'` to `output_s3`"
FORMATS: Final = ("csv", "json", "parquet")
T = TypeVar("T", bound=msgspec.Struct)


class _Keys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    access_key: str
    secret_key: str

    def __repr__(self) -> str:
        return "_Keys(hidden)"


class _Account(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    creds: _Keys | None = None
    role_arn: str | None = None


class _Kind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    s3: _Account = msgspec.field(name="S3")


class _Database(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    db: _Kind


class _Csv(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    delimiter: int
    headers: tuple[str, ...] | None = None


class _CsvFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    csv: _Csv


class ConnectorTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of the client's S3 connector."""

    bucket: str
    path_prefix: str
    format: str | _CsvFormat
    db: _Database
    pre_sorted: bool = False


class S3Input(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`input` of a request whose rows are in a bucket."""

    s3_table: ConnectorTable
    compression: str = "None"
    feature_to_column_map: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class BucketKeys:
    """Keys of a user's bucket."""

    access_key: str
    secret_key: SecretStr = field(repr=False)


@dataclass(frozen=True, slots=True)
class S3Source:
    """Rows in a bucket: the objects below a prefix, by name. `columns`: of features with another
    name in the files. `delimiter` and `headers` are those of csv; without headers the first line of
    each file has them.
    """

    bucket: str
    prefix: str
    format: str
    columns: Mapping[str, str]
    delimiter: str = ","
    headers: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class S3Target:
    """Where a result is wanted: below a prefix of a bucket."""

    bucket: str
    prefix: str

    def folder(self, id_: str) -> str:
        """Return the prefix of the result of a request."""
        return f"{self.prefix.strip('/')}/{id_}/".lstrip("/")


@dataclass(frozen=True, slots=True)
class PlaceKeys:
    """The keys for the places of a request; None: those of the platform."""

    source: BucketKeys | None = None
    target: BucketKeys | None = None

    @property
    def is_empty(self) -> bool:
        return self.source is None and self.target is None


@dataclass(frozen=True, slots=True)
class PlaceRules:
    """What a request may name. `own`: the platform's bucket; `shared`: those that requests without
    keys may use, with the platform's. `sealable`: whether keys can be stored.
    """

    own: str = ""
    shared: frozenset[str] = frozenset()
    sealable: bool = False


NO_KEYS: Final = PlaceKeys()
NO_PLACES: Final = PlaceRules()


@dataclass(frozen=True, slots=True)
class PlaceProblem:
    """What is wrong with a place."""

    entity: str
    text: str


def parse(kind: type[T], value: Any, entity: str) -> T | PlaceProblem:
    """Return a part of a body as `kind`. The texts of msgspec name fields and types, no values."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as wrong:
        return PlaceProblem(entity, f"{wrong}; send it with the client's S3 connector")


def source_problems(given: S3Input, rules: PlaceRules) -> Iterator[PlaceProblem]:
    """Yield what is wrong with the place of the rows."""
    table = given.s3_table
    yield from _table_problems(table, rules, INPUT)
    if given.compression != "None":
        text = f"compression `{given.compression}` is not read; store the files uncompressed"
        yield PlaceProblem(INPUT, text)
    if isinstance(table.format, str):
        if table.format not in FORMATS[1:]:
            text = f"format `{table.format}` is not read; valid formats: {', '.join(FORMATS)}"
            yield PlaceProblem(INPUT, text)
        return
    csv = table.format.csv
    if not 0 < csv.delimiter < 128 or chr(csv.delimiter) in '"\r\n':
        yield PlaceProblem(INPUT, f"{csv.delimiter} is no delimiter of csv; use an ASCII character")
    if csv.headers is not None and len(set(csv.headers)) < max(len(csv.headers), 1):
        yield PlaceProblem(INPUT, "`headers` must have a name per column, each once")


def target_problems(table: ConnectorTable, rules: PlaceRules) -> Iterator[PlaceProblem]:
    """Yield what is wrong with the place of the result."""
    yield from _table_problems(table, rules, OUTPUT)
    if table.format != "parquet" and not is_default(table.format):
        yield PlaceProblem(OUTPUT, "results are written as Parquet only; pass `format='parquet'`")


def is_default(format_: str | _CsvFormat) -> bool:
    """Return whether a format is what the connector has if none is given."""
    return isinstance(format_, _CsvFormat) and format_.csv == _Csv(ord(","))


def source_of(given: S3Input) -> S3Source:
    """Return the place of the rows, which has no problems."""
    table, columns = given.s3_table, given.feature_to_column_map or {}
    if isinstance(table.format, str):
        return S3Source(table.bucket, table.path_prefix, table.format, columns)
    csv = table.format.csv
    place = (table.bucket, table.path_prefix, FORMATS[0], columns)
    return S3Source(*place, chr(csv.delimiter), csv.headers)


def keys_of(table: ConnectorTable | None) -> BucketKeys | None:
    """Return the keys that a table has."""
    creds = None if table is None else table.db.db.s3.creds
    return None if creds is None else BucketKeys(creds.access_key, SecretStr(creds.secret_key))


def _table_problems(
    table: ConnectorTable, rules: PlaceRules, entity: str
) -> Iterator[PlaceProblem]:
    account = table.db.db.s3
    if not table.bucket or not table.path_prefix.strip("/"):
        yield PlaceProblem(entity, "it needs a bucket and a prefix; name both")
    if table.bucket == rules.own:
        text = f"bucket `{table.bucket}` is the platform's own; use one of yours"
        yield PlaceProblem(entity, text)
    elif account.role_arn:
        text = "roles are not assumed; give `aws_access_key_id` and `aws_secret_access_key`"
        yield PlaceProblem(entity, text)
    elif account.creds is None and table.bucket not in rules.shared:
        yield PlaceProblem(
            entity,
            f"bucket `{table.bucket}` needs keys: give `aws_access_key_id` and "
            "`aws_secret_access_key` (the client sends no name of a connector here, so those that "
            "are stored, as for `S3.get`, are not used), or ask your operator to name it in "
            "FENNEL_OFFLINE_SHARED_BUCKETS",
        )
    elif account.creds is not None and not rules.sealable:
        yield PlaceProblem(
            entity, "keys cannot be stored without FENNEL_SECRETS_KEY_FILE; ask your operator"
        )


def missing_columns(source: S3Source, wanted: Sequence[str], found: Sequence[str]) -> list[str]:
    """Return the columns of the files that are wanted (inputs by feature) and not found."""
    names = [source.columns.get(name, name) for name in wanted]
    return [name for name in names if name not in found]


def published_key(prefix: str, number: int, *, failed: bool) -> str:
    """Return the key of file `number` of a published result, or that of its failed rows."""
    return f"{prefix}{'_failed/' if failed else ''}part-{number:05}.parquet"
