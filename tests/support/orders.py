"""Definitions of orders from a source of one kind or another, and a pipeline over them."""

from __future__ import annotations

from typing import Final

_DEFINITIONS: Final = """\
from datetime import datetime

from fennel.connectors import {imports}
from fennel.datasets import Count, Dataset, Sum, dataset, field, index, pipeline
from fennel.dtypes import Continuous
from fennel.lib import inputs, meta

{connector}


{sources}
@meta(owner="tests@example.com")
@dataset
class Order:
    city: str
    amount: int
    at: datetime = field(timestamp=True)


@meta(owner="tests@example.com")
@index
@dataset
class Sales:
    city: str = field(key=True)
    orders: int
    amount: int
    at: datetime = field(timestamp=True)

    @pipeline
    @inputs(Order)
    def sold(cls, orders: Dataset):
        return orders.groupby("city").aggregate(
            orders=Count(window=Continuous("forever")),
            amount=Sum(of="amount", window=Continuous("forever")),
        )
"""


def orders(imports: str, connector: str, sources: str) -> str:
    """Return definitions: what to import of connectors, a connector, and decorators."""
    return (
        _DEFINITIONS.replace("{imports}", imports)
        .replace("{connector}", connector)
        .replace("{sources}", sources)
    )
