"""The obvious join: for every left row, of all right versions up to its upper bound the last; it counts if alive and not too old."""


def join(left, right, low, high, inner):
    out = []
    for row in left:
        seen = [r for r in right if r["k"] == row["a"] and r["ts"] <= row["t"] + high]
        last = max(seen, key=lambda r: (r["ts"], r["__pos"]), default=None)
        if last is not None and (last["__gone"] or (low is not None and last["ts"] < row["t"] - low)):
            last = None
        if last is not None or not inner:
            out.append({**row, "v": last and last["v"], "ts": last and last["ts"]})
    return out
