"""The naive maps: one row at a time."""


def keyed(row):
    """assign z = 12 // y; filter x > 0; rename k -> key, x -> n; dropnull o; drop y. No result
    where y is 0: the row is dead.
    """
    absent = {
        "key": row["k"],
        "n": None,
        "z": None,
        "o": None,
        "t": row["t"],
        "__pos": row["__pos"],
        "__tombstone": True,
    }
    if row["__tombstone"]:
        return [absent]
    if row["y"] == 0:
        return []
    if not row["x"] > 0 or row["o"] is None:
        return [absent]
    return [{**absent, "n": row["x"], "z": 12 // row["y"], "o": row["o"], "__tombstone": False}]


def exploded(row, branch):
    """explode a, b; uneven lists are dead; keep elements with a > 0; the position grows by the
    branch and the element.
    """
    a, b = row["a"] or [None], row["b"] or [None]
    if len(a) != len(b):
        return []
    pairs = [
        (i, x, y) for i, (x, y) in enumerate(zip(a, b, strict=True)) if x is not None and x > 0
    ]
    extended = [
        (row["__pos"] + i.to_bytes(4, "big") + branch.to_bytes(4, "big"), x, y) for i, x, y in pairs
    ]
    return [
        {"a": x, "b": y, "t": row["t"], "__pos": pos, "__tombstone": False}
        for pos, x, y in extended
    ]
