"""The obvious table: of all versions at or before the moment, the last by (timestamp, position)."""


def lookup(versions, key, moment):
    past = [v for v in versions if v["k"] == key and v["t"] <= moment]
    last = max(past, key=lambda v: (v["t"], v["__pos"]), default=None)
    return None if last is None or last["__tombstone"] else [last["t"], last["v"]]
