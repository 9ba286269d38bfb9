"""Datasets, a pipeline and a featureset for card fraud, in plain Fennel.

Cards and transactions arrive by webhook. The pipeline drops refunds, converts the amount to cents,
joins each transaction with the card's data *as of that moment*, and keeps running aggregates per
card. The featureset looks them up, computes an expression from them, and turns them into a score
with a Python function.
"""

from datetime import datetime
from typing import List

import numpy as np
import pandas as pd
from fennel.connectors import Webhook, source
from fennel.datasets import (
    Average,
    Count,
    Dataset,
    LastK,
    Max,
    Sum,
    dataset,
    field,
    index,
    pipeline,
)
from fennel.dtypes import Continuous
from fennel.expr import col
from fennel.featuresets import extractor, featureset
from fennel.featuresets import feature as F  # the client's own idiom
from fennel.lib import inputs, meta, outputs

webhook = Webhook(name="bank")


@source(webhook.endpoint("cards"), disorder="14d", cdc="upsert")
@meta(owner="fraud@example.com")
@index
@dataset
class Card:
    cc_num: int = field(key=True)
    home_state: str
    city_pop: int
    issued_at: datetime = field(timestamp=True)


@source(webhook.endpoint("transactions"), disorder="90d", cdc="append")
@meta(owner="fraud@example.com")
@dataset
class Transaction:
    trans_num: str
    cc_num: int
    merchant: str
    category: str
    amt: float
    at: datetime = field(timestamp=True)


@meta(owner="fraud@example.com")
@index
@dataset
class CardSpend:
    cc_num: int = field(key=True)
    transactions: int
    transactions_1d: int
    spent_cents: float
    average_cents: float
    largest_cents: float
    small_town: int
    categories: List[str]
    at: datetime = field(timestamp=True)

    @pipeline
    @inputs(Transaction, Card)
    def spend(cls, transactions: Dataset, cards: Dataset):
        return (
            transactions.filter(col("amt") > 0.0)
            .assign(cents=(col("amt") * 100.0).astype(float))
            .join(cards, how="inner", on=["cc_num"])
            .assign(rural=((col("city_pop") < 5000).fillnull(False)).astype(bool))
            .assign("rural_count", int, lambda df: df["rural"].astype(int))
            .groupby("cc_num")
            .aggregate(
                transactions=Count(window=Continuous("forever")),
                transactions_1d=Count(window=Continuous("1d")),
                spent_cents=Sum(of="cents", window=Continuous("forever")),
                average_cents=Average(of="cents", window=Continuous("forever")),
                largest_cents=Max(of="cents", window=Continuous("forever"), default=0.0),
                small_town=Sum(of="rural_count", window=Continuous("forever")),
                categories=LastK(of="category", window=Continuous("forever"), limit=3, dedup=True),
            )
        )


@meta(owner="fraud@example.com")
@featureset
class CardRisk:
    cc_num: int
    transactions: int = F(CardSpend.transactions, default=0)
    transactions_1d: int = F(CardSpend.transactions_1d, default=0)
    spent_cents: float = F(CardSpend.spent_cents, default=0.0)
    largest_cents: float = F(CardSpend.largest_cents, default=0.0)
    home_state: str = F(Card.home_state, default="??")
    largest_share: float = F(col("largest_cents") / (col("spent_cents") + 1.0))
    score: float

    @extractor
    @inputs("transactions_1d", "largest_share", "spent_cents")
    @outputs("score")
    def rate(cls, ts: pd.Series, recent: pd.Series, share: pd.Series, spent: pd.Series):
        velocity = np.minimum(recent.astype(float), 10.0) / 10.0
        size = np.minimum(spent.astype(float) / 100_000.0, 1.0)
        return pd.Series(0.5 * velocity + 0.3 * share.astype(float) + 0.2 * size, name="score")


DATASETS = [Card, Transaction, CardSpend]
FEATURESETS = [CardRisk]
