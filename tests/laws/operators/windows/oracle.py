"""The naive windows: list them, then collect their rows."""


def hopping(rows, duration, stride, visible, with_empty):
    """(key, begin, end, rows) of every window that contains a row, or follows one that does
    (`with_empty`), and ends by `visible`.
    """
    out = []
    for key in {r["k"] for r in rows}:
        mine = [r for r in rows if r["k"] == key]
        begins = {
            b
            for r in mine
            for b in range(r["t"] // stride * stride - duration, r["t"] + 1, stride)
            if b <= r["t"] < b + duration
        }
        begins |= {b + stride for b in begins} if with_empty else set()
        out += [
            (key, b, b + duration, [r for r in mine if b <= r["t"] < b + duration])
            for b in begins
            if b + duration <= visible
        ]
    return out


def sessions(rows, gap):
    out = []
    for key in {r["k"] for r in rows}:
        session = []
        for row in sorted((r for r in rows if r["k"] == key), key=lambda r: r["t"]):
            if session and row["t"] > session[-1]["t"] + gap:
                out.append((key, session[0]["t"], session[-1]["t"] + 1, session))
                session = []
            session = [*session, row]
        out.append((key, session[0]["t"], session[-1]["t"] + 1, session))
    return out
