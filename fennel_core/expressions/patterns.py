"""Check time zones, chrono patterns and JSON paths before any row is read.

Theory. An invalid zone, pattern or path is wrong for every row, so it is the author's error, not a
row's. Zones are IANA names (an offset such as `+05:30` is not one). Patterns are those of Rust's
chrono, which both the client's evaluator and Polars use, so that `%f` is a number of nanoseconds
and `%.f` a fraction of a second. Both are tested on one fixed instant: nothing here reads a clock.
"""

from __future__ import annotations

import re

import polars as pl

from fennel_core.expressions.errors import InvalidExpression

EMPTY_JSON = pl.Series(["{}"])
EPOCH = pl.Series([0], dtype=pl.Datetime("us", "UTC"))
DIRECTIVE = re.compile(r"%(?:%|(?P<offset>:{0,3}z|#z|\+)|\.\df|.)", re.DOTALL)
READ_AS = {"%.3f": "%.f", "%.6f": "%.f", "%.9f": "%.f", "%f": "%0f"}
"""Replacements of directives for reading.

`%0f` is the same directive as `%f`, in a spelling for which Polars does not warn: in the client's
language the directive does mean nanoseconds.
"""


def check_zone(zone: str) -> str:
    """Return `zone` if it is the name of a time zone; raises `InvalidExpression` otherwise."""
    try:
        EPOCH.dt.convert_time_zone(zone)
    except pl.exceptions.ComputeError:
        raise InvalidExpression(
            "unknown-timezone",
            f"`{zone}` is not a time zone. Use an IANA name such as `America/New_York`; "
            "offsets such as `+05:30` are not names.",
        ) from None
    return zone


def check_pattern(pattern: str) -> str:
    """Return `pattern` if a datetime can be formatted with it; raises `InvalidExpression`."""
    try:
        EPOCH.dt.to_string(pattern)
    except pl.exceptions.ComputeError:
        raise InvalidExpression(
            "bad-pattern",
            f"`{pattern}` is not a datetime pattern. Use the directives of chrono's strftime.",
        ) from None
    return pattern


def check_reading_pattern(pattern: str) -> str:
    """Return `pattern` in the form in which a reader takes it.

    Reading has one more directive than formatting (`%#z`, an offset of hours only), and accepts any
    number of digits of a fraction. Raises `InvalidExpression`.
    """
    check_pattern(
        DIRECTIVE.sub(lambda directive: "%z" if directive[0] == "%#z" else directive[0], pattern)
    )
    return DIRECTIVE.sub(lambda directive: READ_AS.get(directive[0], directive[0]), pattern)


def reads_offset(pattern: str) -> bool:
    """Return whether text of this pattern contains its own offset from UTC."""
    return any(directive["offset"] for directive in DIRECTIVE.finditer(pattern))


def check_path(path: str) -> str:
    """Return `path` if it is a JSONPath; raises `InvalidExpression` otherwise."""
    try:
        EMPTY_JSON.str.json_path_match(path)
    except pl.exceptions.ComputeError:
        raise InvalidExpression(
            "bad-json-path", f"`{path}` is not a JSONPath. Start with `$`, as in `$.a.b[0]`."
        ) from None
    return path
