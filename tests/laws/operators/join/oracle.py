"""The obvious join: for every left row, of all right versions up to its upper bound the last; it
counts if alive and not too old.
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


def in_force(left, right, key, moment, inner):
    """[a, v] of the joined row as of a moment, None if there is none."""
    row = latest([r for r in left if r["id"] == key and r["t"] <= moment], "t")
    if row is None:
        return None
    met = latest([r for r in right if r["k"] == row["a"] and r["ts"] <= moment], "ts")
    return None if met is None and inner else [row["a"], met and met["v"]]


def latest(versions, time):
    last = max(versions, key=lambda v: (v[time], v["__pos"]), default=None)
    return None if last is None or last["__tombstone"] else last
