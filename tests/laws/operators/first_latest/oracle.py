"""The naive first and latest."""


def first_or_latest(rows, key, as_of, *, first):
    """Return the first or the latest row of the key at or before `as_of`."""
    mine = [r for r in rows if r["k"] == key]
    if first:
        return min(
            (r for r in mine if r["t"] <= as_of), key=lambda r: (r["t"], r["__pos"]), default=None
        )
    return max(
        (r for r in mine if r["t"] <= as_of), key=lambda r: (r["t"], r["__pos"]), default=None
    )
