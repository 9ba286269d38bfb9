"""Time zones, chrono patterns and JSON paths, judged before any row is seen.

Theory. A wrong zone, pattern or path is wrong for every row, so it is the author's error, not a
row's. Zones are IANA names (an offset such as `+05:30` is none); patterns are those of Rust's
chrono, which both the client's evaluator and Polars use, so that `%f` is a count of nanoseconds and
`%.f` a fraction of a second. Both are tried out on one fixed instant: nothing here reads a clock.
"""

from __future__ import annotations

import re

import polars as pl

from fennel_core.expressions.errors import InvalidExpression

EMPTY_JSON = pl.Series(["{}"])
EPOCH = pl.Series([0], dtype=pl.Datetime("us", "UTC"))
DIRECTIVE = re.compile(r"%(?:%|(?P<offset>:{0,3}z|#z|\+)|\.\df|.)", re.DOTALL)
READ_AS = {"%.3f": "%.f", "%.6f": "%.f", "%.9f": "%.f", "%f": "%0f"}
"""The last is the same directive in a spelling about which Polars does not warn: the language does
mean nanoseconds by it.
"""


def check_zone(zone: str) -> str:
    """`zone` itself, if it is the name of a time zone."""
    try:
        EPOCH.dt.convert_time_zone(zone)
    except pl.exceptions.ComputeError:
        raise InvalidExpression(
            "unknown-timezone",
            f"`{zone}` is no time zone. Use an IANA name such as `America/New_York`; "
            "offsets such as `+05:30` are not names.",
        ) from None
    return zone


def check_pattern(pattern: str) -> str:
    """`pattern` itself, if a datetime can be written with it."""
    try:
        EPOCH.dt.to_string(pattern)
    except pl.exceptions.ComputeError:
        raise InvalidExpression(
            "bad-pattern",
            f"`{pattern}` is no datetime pattern. Use the directives of chrono's strftime.",
        ) from None
    return pattern


def check_reading_pattern(pattern: str) -> str:
    """`pattern` as a reader takes it, if it is one.

    Reading knows one directive more than writing (`%#z`, an offset of hours only), and takes as
    many digits of a fraction as there are.
    """
    check_pattern(
        DIRECTIVE.sub(lambda directive: "%z" if directive[0] == "%#z" else directive[0], pattern)
    )
    return DIRECTIVE.sub(lambda directive: READ_AS.get(directive[0], directive[0]), pattern)


def reads_offset(pattern: str) -> bool:
    """Does text of this pattern carry its own offset from UTC?"""
    return any(directive["offset"] for directive in DIRECTIVE.finditer(pattern))


def check_path(path: str) -> str:
    """`path` itself, if it is a JSONPath."""
    try:
        EMPTY_JSON.str.json_path_match(path)
    except pl.exceptions.ComputeError:
        raise InvalidExpression(
            "bad-json-path", f"`{path}` is no JSONPath. Start with `$`, as in `$.a.b[0]`."
        ) from None
    return path
