"""The card transactions that ship with the client, shifted to end a minute ago."""

from importlib.resources import files

import pandas as pd


def load(now: pd.Timestamp) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return cards and their transactions.

    Intervals between transactions are kept; the last one is a minute before `now` (UTC). Each card
    is issued a day before the first transaction.
    """
    with files("fennel.client_tests").joinpath("data/fraud_sample.csv").open() as file:
        rows = pd.read_csv(file)
    at = pd.to_datetime(rows["trans_date_trans_time"], utc=True)
    rows["at"] = (at + (now - pd.Timedelta(minutes=1) - at.max())).dt.floor("s")
    cards = rows.groupby("cc_num", as_index=False).agg(
        home_state=("state", "last"), city_pop=("city_pop", "last")
    )
    cards["issued_at"] = rows["at"].min() - pd.Timedelta(days=1)
    return cards, rows[["trans_num", "cc_num", "merchant", "category", "amt", "at"]]
