"""The peer of `throughput.py`: Quix Streams, exactly once, on the same broker.

Runs in an environment of its own. The time is from the first row to the end of `app.run`, which has
committed by then; its idle wait at the end costs no CPU and is subtracted from the wall time.
"""

import json
import sys
import time

from quixstreams import Application

COMMIT_EVERY_ROWS = 10_000
QUIET_S = 5.0


def main(kafka: str, topic: str, name: str, rows: str, folder: str) -> None:
    app = Application(
        broker_address=kafka,
        consumer_group=f"{topic}-group",
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        commit_every=COMMIT_EVERY_ROWS,
        state_dir=folder,
        loglevel="ERROR",
    )
    begun: list[tuple[float, float]] = []
    last = [0.0]

    def clock(value: dict) -> dict:
        if not begun:
            begun.append((time.process_time(), time.perf_counter()))
        last[0] = time.perf_counter()
        return value

    def total(value: dict, state) -> dict:
        held = state.get("held", {"rows": 0, "total": 0.0})
        held = {"rows": held["rows"] + 1, "total": held["total"] + value["amount"]}
        state.set("held", held)
        return held

    frame = app.dataframe(app.topic(topic, value_deserializer="json")).apply(clock)
    if name == "stateless":
        frame = frame.filter(lambda value: value["amount"] > 0.0).apply(
            lambda value: value | {"cents": value["amount"] * 100.0}
        )
    else:
        frame = frame.apply(total, stateful=True)
    frame.to_topic(app.topic(f"{topic}-out", value_serializer="json"))
    app.run(count=int(rows), timeout=QUIET_S)
    cpu, wall = begun[0]
    print(json.dumps({"cpu_s": time.process_time() - cpu, "wall_s": last[0] - wall}))


if __name__ == "__main__":
    main(*sys.argv[1:6])
