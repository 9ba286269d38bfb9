"""The naive dedup: sort, cut into groups, keep the last of each."""

SECOND = 1_000_000


def dedup(rows, kind, size):
    kept = []
    for by in {r["k"] for r in rows}:
        ordered = sorted((r for r in rows if r["k"] == by), key=lambda r: (r["t"], r["__pos"]))
        for row, following in zip(ordered, [*ordered[1:], None], strict=True):
            if following is None or not same_group(row["t"], following["t"], kind, size):
                kept.append(row)
    return kept


def same_group(a, b, kind, size):
    if kind == "session":
        return b - a < size
    return (
        a == b
        if kind == "time"
        else a // SECOND // (size // SECOND) == b // SECOND // (size // SECOND)
    )
