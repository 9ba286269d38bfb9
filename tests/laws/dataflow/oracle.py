"""The naive platform: keep every accepted row, and compute each lookup from all of them. Imports
nothing from the project.
"""

SECOND = 1_000_000
DISORDER = 20 * SECOND
STEP = 2 * SECOND


class Accepted:
    """The set of accepted rows, each with its number in the order of acceptance (`n`); `at` in
    microseconds.
    """

    def __init__(self):
        self.rows = {"Clicks": [], "Users": [], "Cities": [], "Orders": []}
        self._watermark = self._latest = None

    def take(self, endpoint, rows):
        """Accept one request. A click is dropped if it is older, by more than DISORDER, than the
        largest time accepted before the last request.
        """
        if endpoint == "Clicks":
            rows = [
                r for r in rows if self._watermark is None or r["at"] >= self._watermark - DISORDER
            ]
            if rows:
                self._watermark = self._latest
                self._latest = max(
                    [r["at"] for r in rows] + [self._latest] * (self._latest is not None)
                )
        n = sum(map(len, self.rows.values()))
        self.rows[endpoint] += [{**row, "n": n + i} for i, row in enumerate(rows)]

    def newest(self, dataset, key, as_of):
        name, value = key
        found = [v for v in self.rows[dataset] if v[name] == value and v["at"] <= as_of]
        return max(found, key=lambda v: (v["at"], v["n"]), default=None)

    # --- datasets as of a time: the row, or None

    def users(self, uid, as_of):
        return self.newest("Users", ("uid", uid), as_of)

    def cities(self, city, as_of):
        return self.newest("Cities", ("city", city), as_of)

    def orders(self, oid, as_of):
        return self.newest("Orders", ("oid", oid), as_of)

    def locals(self, uid, as_of):
        user = self.users(uid, as_of)
        return None if user is None or user["city"] == "oslo" else user

    def homes(self, uid, as_of):
        user = self.users(uid, as_of)
        city = user and self.cities(user["city"], as_of)
        if user is None:
            return None
        return {
            "city": user["city"],
            "country": city and city["country"],
            "at": max(user["at"], city["at"] if city else 0),
        }

    def per_city(self, city, as_of):
        matched = [c for c in self._clicked(self.users) if c["city"] == city and c["at"] <= as_of]
        recent = [c for c in matched if as_of < c["at"] + 5 * SECOND]
        changed = [c["at"] for c in matched] + [
            t for c in matched if (t := c["at"] + 5 * SECOND) <= as_of
        ]
        if not matched:
            return None
        return {
            "count": len(matched),
            "recent": total(recent),
            "top": max(c["amount"] for c in matched),
            "at": max(changed),
        }

    def natives(self, city, as_of):
        matched = [
            c
            for c in self._clicked(self.locals)
            if c["city"] == city and c["since"] >= c["at"] - 6 * SECOND and c["at"] <= as_of
        ]
        return {"count": len(matched), "at": max(c["at"] for c in matched)} if matched else None

    def windowed(self, city, as_of):
        return self._closed(city, as_of, self.locals, None)

    def final(self, city, as_of):
        return None if city == "lima" else self._closed(city, as_of, self.users, "nowhere")

    def abroad(self, country, as_of):
        times = {
            r["at"]
            for dataset in ("Orders", "Users", "Cities")
            for r in self.rows[dataset]
            if r["at"] <= as_of
        }
        if not any(self._valid_orders(country, at) for at in times):
            return None
        valid = self._valid_orders(country, as_of)
        recent = [o for o in valid if as_of < o["since"] + 5 * SECOND]
        return {"count": len(valid), "recent": total(recent)}

    def _valid_orders(self, country, as_of):
        valid = []
        for oid in {o["oid"] for o in self.rows["Orders"]}:
            order = self.orders(oid, as_of)
            home = order and self.homes(order["uid"], as_of)
            if home and home["country"] == country:
                valid.append({**order, "since": max(order["at"], home["at"])})
        return valid

    def totals(self, uid, as_of):
        """Steps of two seconds: a row that was valid at a multiple of them counts until its
        successor begins, up to the largest accepted event time.
        """
        intervals = [
            (max(begin, (begin // STEP + 1) * STEP), end, row)
            for begin, end, row in self._intervals()
        ]
        intervals = [
            interval for interval in intervals if interval[1] is None or interval[0] < interval[1]
        ]
        return self._stepped(
            uid, min(as_of, self._max_time("Orders")), intervals, lambda row, now: True
        )

    def counts(self, uid, as_of):
        intervals = self._intervals()
        ends = [
            (begin, end if end and end < begin + 5 * SECOND else begin + 5 * SECOND, row)
            for begin, end, row in intervals
        ]
        found = self._stepped(
            uid, as_of, intervals + ends, lambda row, now: now < row["at"] + 5 * SECOND
        )
        counting = [
            row
            for begin, end, row in intervals
            if row["uid"] == uid and begin <= as_of and (end is None or as_of < end)
        ]
        return found and {**found, "count": len(counting)}

    def spenders(self, count, as_of):
        matched = []
        for click in self.rows["Clicks"]:
            row = self.totals(click["uid"], click["at"])
            if row is not None and row["count"] == count and click["at"] <= as_of:
                matched.append(click)
        recent = [c for c in matched if as_of < c["at"] + 5 * SECOND]
        return {"clicks": len(matched), "amount": total(recent)} if matched else None

    # --- parts of datasets

    def _clicked(self, side):
        """Return clicks with the row of their user at that time; `since`: that row's time."""
        matched = [(click, side(click["uid"], click["at"])) for click in self.rows["Clicks"]]
        return [
            {**click, "city": row and row["city"], "since": row and row["at"]}
            for click, row in matched
        ]

    def _max_time(self, dataset):
        return max((r["at"] for r in self.rows[dataset]), default=0)

    def _closed(self, city, as_of, side, nowhere):
        """Windows of 4 s, and of 6 s every 2 s, that have ended by the largest time of all
        clicks.
        """
        clicks = [c for c in self._clicked(side) if (c["city"] or nowhere) == city]
        ends = {
            e
            for c in clicks
            for d, s in ((4, 4), (6, 2))
            for e in ends_of(c["at"], d * SECOND, s * SECOND)
        }
        seen = [e for e in ends if e <= min(as_of, self._max_time("Clicks"))]
        if not seen:
            return None
        last = max(seen)
        four, six = last // (4 * SECOND) * 4 * SECOND, last // (2 * SECOND) * 2 * SECOND
        count = [c for c in clicks if four - 4 * SECOND <= c["at"] < four]
        return {
            "count": len(count),
            "amount": total(c for c in clicks if six - 6 * SECOND <= c["at"] < six),
            "at": last,
        }

    def _intervals(self):
        """Return (begin, end, row) of every version of an order that is ever valid."""
        intervals = []
        for row in self.rows["Orders"]:
            if self.orders(row["oid"], row["at"]) is row:
                later = [
                    o["at"]
                    for o in self.rows["Orders"]
                    if o["oid"] == row["oid"] and o["at"] > row["at"]
                ]
                intervals.append((row["at"], min(later, default=None), row))
        return intervals

    def _stepped(self, uid, as_of, intervals, counts):
        mine = [interval for interval in intervals if interval[2]["uid"] == uid]
        changed = [
            t for begin, end, _ in mine for t in (begin, end) if t is not None and t <= as_of
        ]
        if not changed:
            return None
        last = max(changed)
        rows = {
            row["n"]: row
            for begin, end, row in mine
            if begin <= last and (end is None or last < end) and counts(row, last)
        }
        return {"count": len(rows), "total": total(rows.values()), "at": last}


def ends_of(at, duration, stride):
    """Return the ends of the windows that contain `at`, and the end after the last of them, when
    the row has left.
    """
    first, last = (at // stride + 1) * stride, (at + duration) // stride * stride
    return range(first, last + stride + 1, stride)


def total(rows):
    return sum(row["amount"] for row in rows)
