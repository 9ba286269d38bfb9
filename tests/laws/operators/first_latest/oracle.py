"""The obvious first and latest."""


def pick(rows, key, moment, *, first):
    """The first row of the key if it has come by `moment`; the latest at or before it."""
    mine = [r for r in rows if r["k"] == key]
    if first:
        return min(
            (r for r in mine if r["t"] <= moment), key=lambda r: (r["t"], r["__pos"]), default=None
        )
    return max(
        (r for r in mine if r["t"] <= moment), key=lambda r: (r["t"], r["__pos"]), default=None
    )
