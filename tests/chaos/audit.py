"""Compare every key of a chaos run with a recompute; imports the standard library only.

    python tests/chaos/audit.py URL TOKEN ACCEPTED

`ACCEPTED`: a file with one JSON object per accepted request, {"endpoint": ..., "rows": [...]};
times are in milliseconds. Looks up every key over HTTP. Prints one line per difference and a count,
and exits with 1 if there is any difference or no key at all.
"""

import bisect
import json
import sys
import time
import urllib.error
import urllib.request
from collections import defaultdict
from pathlib import Path

AT_ONCE = 200
RETRY_S = 120.0
SHOWN = 20


def recompute(requests):
    """Return dataset → key → expected columns, by the naive definition of each dataset."""
    rows = defaultdict(dict)
    for request in requests:
        for row in request["rows"]:
            rows[request["endpoint"]][json.dumps(row, sort_keys=True)] = row
    cities, customers = versions(rows["cities"], "city"), versions(rows["customers"], "uid")
    spending = defaultdict(lambda: {"orders": 0, "spent": 0})
    turnover = defaultdict(lambda: {"orders": 0, "spent": 0})
    for order in rows["orders"].values():
        customer = as_of(customers, order["uid"], order["at"])
        city = customer and as_of(cities, customer["city"], order["at"])
        if city:
            for sums in (spending[order["uid"]], turnover[city["country"]]):
                sums["orders"] += 1
                sums["spent"] += order["amount"]
    return {
        ("Customer", "uid"): {key: {"city": v[-1]["city"]} for key, v in customers.items()},
        ("City", "city"): {key: {"country": v[-1]["country"]} for key, v in cities.items()},
        ("Spending", "uid"): dict(spending),
        ("Turnover", "country"): dict(turnover),
    }


def versions(rows, key):
    """Return key → rows in the order of their times."""
    found = defaultdict(list)
    for row in sorted(rows.values(), key=lambda row: row["at"]):
        found[row[key]].append(row)
    return found


def as_of(found, key, at):
    """Return the newest row of the key that is not newer than `at`, or None."""
    rows = found.get(key, [])
    index = bisect.bisect_right([row["at"] for row in rows], at)
    return rows[index - 1] if index else None


def look_up(url, token, dataset, key, values):
    """Return the columns of each value, or None for a value without a row; retries 503."""
    body = json.dumps({"keys": [{key: value} for value in values], "fields": []}).encode()
    give_up = time.monotonic() + RETRY_S
    while True:
        request = urllib.request.Request(  # noqa: S310  # an address of this machine
            f"{url}/api/v1/dataset/{dataset}/lookup",
            data=body,
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310  # an address of this machine
                answer = json.load(response)
            break
        except urllib.error.HTTPError as error:
            if error.code != 503 or time.monotonic() > give_up:
                raise
            time.sleep(0.5)  # the pause of a client that retries
    columns = answer["data"]
    return [
        {name: columns[name][i] for name in columns} if found else None
        for i, found in enumerate(answer["found"])
    ]


def main(url, token, accepted):
    with Path(accepted).open() as file:
        expected = recompute(json.loads(line) for line in file)
    differences, keys = [], 0
    for (dataset, key), wanted in expected.items():
        values = sorted(wanted)
        for start in range(0, len(values), AT_ONCE):
            some = values[start : start + AT_ONCE]
            for value, row in zip(some, look_up(url, token, dataset, key, some), strict=True):
                keys += 1
                found = row and {name: row[name] for name in wanted[value]}
                if found != wanted[value]:
                    differences.append(f"{dataset} {value}: {found}, expected {wanted[value]}")
    for line in differences[:SHOWN]:
        print(line)
    print(f"keys compared: {keys}; differences: {len(differences)}")
    return 1 if differences or not keys else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
