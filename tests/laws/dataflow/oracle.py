"""The obvious platform: keep every accepted row, and answer each question by looking through all of
them. Imports nothing of ours.
"""

SECOND = 1_000_000
DISORDER = 20 * SECOND
STEP = 2 * SECOND


class Accepted:
    """The set of accepted rows, each with its place in the order of acceptance (`n`); `at` in
    microseconds.
    """

    def __init__(self):
        self.rows = {"Clicks": [], "Users": [], "Cities": [], "Orders": []}
        self._watermark = self._latest = None

    def take(self, endpoint, rows):
        """One request. A click older than the largest time accepted before the last request, minus
        disorder, is dropped.
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

    def newest(self, dataset, key, moment):
        name, value = key
        found = [v for v in self.rows[dataset] if v[name] == value and v["at"] <= moment]
        return max(found, key=lambda v: (v["at"], v["n"]), default=None)

    # --- datasets as of a moment: the row, or None

    def users(self, uid, moment):
        return self.newest("Users", ("uid", uid), moment)

    def cities(self, city, moment):
        return self.newest("Cities", ("city", city), moment)

    def orders(self, oid, moment):
        return self.newest("Orders", ("oid", oid), moment)

    def locals(self, uid, moment):
        user = self.users(uid, moment)
        return None if user is None or user["city"] == "oslo" else user

    def homes(self, uid, moment):
        user = self.users(uid, moment)
        city = user and self.cities(user["city"], moment)
        if user is None:
            return None
        return {
            "city": user["city"],
            "country": city and city["country"],
            "at": max(user["at"], city["at"] if city else 0),
        }

    def per_city(self, city, moment):
        met = [c for c in self._clicked(self.users) if c["city"] == city and c["at"] <= moment]
        recent = [c for c in met if moment < c["at"] + 5 * SECOND]
        changed = [c["at"] for c in met] + [t for c in met if (t := c["at"] + 5 * SECOND) <= moment]
        if not met:
            return None
        return {
            "count": len(met),
            "recent": total(recent),
            "top": max(c["amount"] for c in met),
            "at": max(changed),
        }

    def natives(self, city, moment):
        met = [
            c
            for c in self._clicked(self.locals)
            if c["city"] == city and c["since"] >= c["at"] - 6 * SECOND and c["at"] <= moment
        ]
        return {"count": len(met), "at": max(c["at"] for c in met)} if met else None

    def windowed(self, city, moment):
        return self._closed(city, moment, self.locals, None)

    def final(self, city, moment):
        return None if city == "lima" else self._closed(city, moment, self.users, "nowhere")

    def abroad(self, country, moment):
        times = {
            r["at"]
            for dataset in ("Orders", "Users", "Cities")
            for r in self.rows[dataset]
            if r["at"] <= moment
        }
        if not any(self._living(country, at) for at in times):
            return None
        living = self._living(country, moment)
        recent = [o for o in living if moment < o["since"] + 5 * SECOND]
        return {"count": len(living), "recent": total(recent)}

    def _living(self, country, moment):
        living = []
        for oid in {o["oid"] for o in self.rows["Orders"]}:
            order = self.orders(oid, moment)
            home = order and self.homes(order["uid"], moment)
            if home and home["country"] == country:
                living.append({**order, "since": max(order["at"], home["at"])})
        return living

    def totals(self, uid, moment):
        """Steps of two seconds: what lived at a multiple of them counts until its successor begins,
        up to the largest accepted event time.
        """
        lives = [
            (max(begin, (begin // STEP + 1) * STEP), end, row) for begin, end, row in self._lives()
        ]
        lives = [life for life in lives if life[1] is None or life[0] < life[1]]
        return self._stepped(
            uid, min(moment, self._max_time("Orders")), lives, lambda row, now: True
        )

    def counts(self, uid, moment):
        lives = self._lives()
        ends = [
            (begin, end if end and end < begin + 5 * SECOND else begin + 5 * SECOND, row)
            for begin, end, row in lives
        ]
        found = self._stepped(
            uid, moment, lives + ends, lambda row, now: now < row["at"] + 5 * SECOND
        )
        counting = [
            row
            for begin, end, row in lives
            if row["uid"] == uid and begin <= moment and (end is None or moment < end)
        ]
        return found and {**found, "count": len(counting)}

    def spenders(self, count, moment):
        met = []
        for click in self.rows["Clicks"]:
            row = self.totals(click["uid"], click["at"])
            if row is not None and row["count"] == count and click["at"] <= moment:
                met.append(click)
        recent = [c for c in met if moment < c["at"] + 5 * SECOND]
        return {"clicks": len(met), "amount": total(recent)} if met else None

    # --- parts of them

    def _clicked(self, side):
        """Clicks with the row of their user then; `since`: that row's time."""
        met = [(click, side(click["uid"], click["at"])) for click in self.rows["Clicks"]]
        return [
            {**click, "city": row and row["city"], "since": row and row["at"]} for click, row in met
        ]

    def _max_time(self, dataset):
        return max((r["at"] for r in self.rows[dataset]), default=0)

    def _closed(self, city, moment, side, nowhere):
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
        seen = [e for e in ends if e <= min(moment, self._max_time("Clicks"))]
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

    def _lives(self):
        """(begin, end, row) of every order's version that ever lives."""
        lives = []
        for row in self.rows["Orders"]:
            if self.orders(row["oid"], row["at"]) is row:
                later = [
                    o["at"]
                    for o in self.rows["Orders"]
                    if o["oid"] == row["oid"] and o["at"] > row["at"]
                ]
                lives.append((row["at"], min(later, default=None), row))
        return lives

    def _stepped(self, uid, moment, lives, counts):
        mine = [life for life in lives if life[2]["uid"] == uid]
        changed = [
            t for begin, end, _ in mine for t in (begin, end) if t is not None and t <= moment
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
    """Ends of the windows that hold `at`, and the end after the last of them, when the row has
    left.
    """
    first, last = (at // stride + 1) * stride, (at + duration) // stride * stride
    return range(first, last + stride + 1, stride)


def total(rows):
    return sum(row["amount"] for row in rows)
