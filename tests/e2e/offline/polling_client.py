"""A client that asks for training data and polls as docs/training_data.md shows, with the retry.

The arguments are the address of the platform, a token and the number of rows. Each line that is
printed is JSON: the id of the request, each kind of error of a poll once, and the last status.
"""

import json
import sys
import time

import pandas as pd
from fennel.client import Client

ROWS_OF_ONE_KEY = 50


def main(url: str, token: str, rows: str) -> None:
    client = Client(url, token=token)
    count = int(rows)
    asked = client.query_offline(
        inputs=["Shopper.uid"],
        outputs=["Shopper.age", "Shopper.double"],
        timestamp_column="at",
        input_dataframe=pd.DataFrame(
            {
                "Shopper.uid": [number % ROWS_OF_ONE_KEY for number in range(count)],
                "at": pd.to_datetime(["2026-01-02"] * count, utc=True),
            }
        ),
        workflow="polled",
    )
    print(json.dumps({"request_id": asked["request_id"]}), flush=True)
    errors: set[str] = set()
    while asked["state"] in ("queued", "running"):
        time.sleep(0.5)  # between two polls
        try:
            asked = client.track_offline_query(asked["request_id"])
        except Exception as error:  # noqa: BLE001  # the client raises nothing more specific
            if str(error) not in errors:
                errors.add(str(error))
                print(json.dumps({"error": str(error)}), flush=True)
    print(json.dumps({"status": asked}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
