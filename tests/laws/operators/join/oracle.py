"""The naive join: for every left row, the last of all right versions up to its upper bound, if it
is not a tombstone and not too old.
"""


def join(left, right, low, high, inner):
    out = []
    for row in left:
        seen = [r for r in right if r["k"] == row["a"] and r["ts"] <= row["t"] + high]
        last = max(seen, key=lambda r: (r["ts"], r["__pos"]), default=None)
        if last is not None and (
            last["__tombstone"] or (low is not None and last["ts"] < row["t"] - low)
        ):
            last = None
        if last is not None or not inner:
            out.append({**row, "v": last and last["v"], "ts": last and last["ts"]})
    return out


def valid_at(left, right, key, as_of, inner):
    """Return [a, v] of the joined row as of a time, None if there is none."""
    row = latest([r for r in left if r["id"] == key and r["t"] <= as_of], "t")
    if row is None:
        return None
    matched = latest([r for r in right if r["k"] == row["a"] and r["ts"] <= as_of], "ts")
    return None if matched is None and inner else [row["a"], matched and matched["v"]]


def latest(versions, time):
    last = max(versions, key=lambda v: (v[time], v["__pos"]), default=None)
    return None if last is None or last["__tombstone"] else last
