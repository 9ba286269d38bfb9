"""A project over corrected rows, from `client.commit` to `client.query`, as a user writes it.

    python corrections.py URL TOKEN < calls.json > results

The client's interpreter runs it. `calls.json`: {"logs": [[endpoint, rows]...], "lookups":
[[dataset, key, keys, seconds or null]...], "cities": [...]}. Between the logs and the lookups it
waits for the barrier. The last line of its output holds the results.
"""

import json
import sys
import warnings
from pathlib import Path

import pandas as pd
import requests
from fennel.client import Client

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
warnings.simplefilter("ignore")
from client_definitions import corrections  # noqa: E402  # found on the path above


def moments(seconds):
    return pd.Series(
        pd.to_datetime([round(1000 * second) for second in seconds], unit="ms", utc=True)
    )


def logged(client, endpoint, frame):
    """Log rows, and again if the server reports that nothing was logged, as a user would."""
    for _ in range(9):
        try:
            client.log("door", endpoint, frame)
        except Exception as refused:  # the client's only error
            if "nothing was logged" not in str(refused):
                raise
        else:
            return
    client.log("door", endpoint, frame)


def main(url, token):
    asked = json.load(sys.stdin)
    client = Client(url, token)
    client.commit(
        message="corrections",
        datasets=corrections.OBJECTS[:-1],
        featuresets=corrections.OBJECTS[-1:],
    )
    for endpoint, rows in asked["logs"]:
        frame = pd.DataFrame(rows)
        frame["at"] = pd.to_datetime(frame["at"], unit="ms", utc=True)
        logged(client, endpoint, frame)
    barrier = requests.post(
        f"{url}/api/v1/barrier",
        json={"timeout_s": 120},
        headers={"Authorization": f"Bearer {token}"},
        timeout=150,
    )
    barrier.raise_for_status()
    responses = []
    for dataset, name, keys, seconds in asked["lookups"]:
        timestamps = None if seconds is None else moments(seconds)
        found, there = client.lookup(dataset, pd.DataFrame({name: keys}), timestamps=timestamps)
        rows = json.loads(found.to_json(orient="records", date_format="iso", date_unit="us"))
        responses.append(
            [row if is_there else None for row, is_there in zip(rows, there, strict=True)]
        )
    cities = pd.DataFrame({"City.city": asked["cities"]})
    features = client.query(
        inputs=["City.city"],
        outputs=["City.count", "City.recent", "City.windows"],
        input_dataframe=cities,
    )
    print()  # the client writes what it likes before
    print(json.dumps({"lookups": responses, "query": features.to_dict("list")}))


main(*sys.argv[1:])
