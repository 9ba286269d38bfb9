"""The naive intervals: each row that is ever valid, with the time of the next version."""


def intervals(versions):
    out = []
    for key in {v["k"] for v in versions}:
        last_of_time = {}
        for version in sorted(
            (v for v in versions if v["k"] == key), key=lambda v: (v["t"], v["__pos"])
        ):
            last_of_time[version["t"]] = version
        valid = list(last_of_time.values())
        ends = [*(v["t"] for v in valid[1:]), None]
        out += [
            {**v, "__valid_to": end}
            for v, end in zip(valid, ends, strict=True)
            if not v["__tombstone"]
        ]
    return out
