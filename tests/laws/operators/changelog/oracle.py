"""The naive changelog: walk the versions that are ever valid."""


def changelog(versions):
    """Return (time, position, is delete, row) per event."""
    events = []
    for key in {v["k"] for v in versions}:
        last_of_time = {}
        for version in sorted(
            (v for v in versions if v["k"] == key), key=lambda v: (v["t"], v["__pos"])
        ):
            last_of_time[version["t"]] = version
        old = None
        for as_of, version in last_of_time.items():
            if old is not None and not old["__tombstone"]:
                events.append((as_of, version["__pos"] + bytes([0, 0, 0, 0]), True, old))
            if not version["__tombstone"]:
                events.append((as_of, version["__pos"] + bytes([0, 0, 0, 1]), False, version))
            old = version
    return events
