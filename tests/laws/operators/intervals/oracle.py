"""The obvious intervals: each row that ever lives, with the time of the next version."""


def facts(versions):
    out = []
    for key in {v["k"] for v in versions}:
        last_of_time = {}
        for version in sorted(
            (v for v in versions if v["k"] == key), key=lambda v: (v["t"], v["__pos"])
        ):
            last_of_time[version["t"]] = version
        living = list(last_of_time.values())
        ends = [*(v["t"] for v in living[1:]), None]
        out += [
            {**v, "__valid_to": end}
            for v, end in zip(living, ends, strict=True)
            if not v["__tombstone"]
        ]
    return out
