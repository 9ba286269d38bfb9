"""Laws: windows as keys add up to the windows of the rows that were not retracted."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from fennel_core.operators.build import build
from fennel_core.operators.spec import WindowsSpec
from fennel_core.vocab.dtypes import Field, Int, Str, Struct, Timestamp
from fennel_core.vocab.schema import Schema
from fennel_core.wire import operators as wire
from tests.laws.operators.windows import oracle
from tests.support.histories import bag, histories, integral, run

SECOND = 1_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INPUT = Schema((), (Field("k", Str()), Field("v", Int())), "t")
WINDOW = Field("w", Struct("Window", (Field("begin", Timestamp()), Field("end", Timestamp()))))
PLAIN = Schema((Field("k", Str()), WINDOW), (), "t")
SUMMED = Schema((Field("k", Str()), WINDOW), (Field("s", Int()),), "t")
ROW = st.fixed_dictionaries(
    {
        "k": st.sampled_from("ab"),
        "v": st.integers(-3, 3),
        "t": st.integers(-5, 25).map(lambda t: t * SECOND // 2),
    }
)
SPECS = (wire.Sum("s", wire.Forever(), "v"),)


def _found(emitted):
    """Versions with windows and times as microseconds."""
    out = []
    for row in integral(emitted):
        begin, end = (
            (row["w"][side] - EPOCH) // timedelta(microseconds=1) for side in ("begin", "end")
        )
        out.append(
            {"k": row["k"], "begin": begin, "end": end, "t": row["t"]}
            | ({"s": row["s"]} if "s" in row else {})
        )
    assert len({row["__pos"] for row in integral(emitted)}) == len(out)
    return bag(out)


def _expected(windows, summed):
    return bag(
        [
            {"k": key, "begin": begin, "end": end, "t": end}
            | ({"s": sum(r["v"] for r in rows)} if summed else {})
            for key, begin, end, rows in windows
        ]
    )


@given(
    histories(ROW, max_rows=10),
    st.sampled_from([(4, 4), (4, 2), (5, 3)]),
    st.sampled_from([0, 3]),
    st.booleans(),
)
def test_hopping_windows_appear_once_they_have_closed(history, size, lookback, summed):
    duration, stride = (n * SECOND for n in size)
    window = (
        wire.Tumbling(duration, lookback * SECOND)
        if duration == stride
        else wire.Hopping(duration, stride, lookback * SECOND)
    )
    spec = WindowsSpec(
        INPUT, ("k",), "w", window, SUMMED if summed else PLAIN, SPECS if summed else ()
    )
    _, emitted = run(build(spec), history, INPUT, canonical=False)
    seen = max((c.row["t"] for batch in history.batches for c in batch if c.sign > 0), default=0)
    windows = oracle.hopping(
        history.left_over(), duration, stride, seen - lookback * SECOND, summed
    )
    assert _found(emitted) == _expected(windows, summed)


@given(histories(ROW, max_rows=12), st.sampled_from([0, 1, 2]), st.booleans())
def test_sessions_are_separated_by_longer_pauses(history, gap, summed):
    spec = WindowsSpec(
        INPUT,
        ("k",),
        "w",
        wire.Session(gap * SECOND),
        SUMMED if summed else PLAIN,
        SPECS if summed else (),
    )
    _, emitted = run(build(spec), history, INPUT)
    assert _found(emitted) == _expected(oracle.sessions(history.left_over(), gap * SECOND), summed)
