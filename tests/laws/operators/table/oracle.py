"""The naive table: of all versions at or before a time, the last by (timestamp, position)."""


def lookup(versions, key, as_of):
    past = [v for v in versions if v["k"] == key and v["t"] <= as_of]
    last = max(past, key=lambda v: (v["t"], v["__pos"]), default=None)
    return None if last is None or last["__tombstone"] else [last["t"], last["v"]]
