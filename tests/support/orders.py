"""Definitions of orders from a source of one kind or another, and a pipeline over them.

`orders` has orders alone; `shop_tables` those of the tables `orders` and `people` of a database.
"""

from __future__ import annotations

from typing import Final

_DEFINITIONS: Final = """\
from datetime import date, datetime
from typing import List, Optional

from fennel.connectors import {imports}
from fennel.datasets import Count, Dataset, Sum, dataset, field, index, pipeline
from fennel.dtypes import Continuous, Decimal
from fennel.lib import inputs, meta

{connector}


{sources}
@meta(owner="tests@example.com")
@dataset
class Order:
    city: str
    amount: int
{fields}    at: datetime = field(timestamp=True)


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
_PEOPLE: Final = """

@source(shop.table("people", cursor="changed"), every="5s", disorder="14d", cdc="upsert")
@meta(owner="tests@example.com")
@index
@dataset
class Person:
    id: int = field(key=True)
    name: str
    changed: datetime = field(timestamp=True)
"""
TABLE_FIELDS: Final = """\
    price: Decimal[2]
    day: date
    weight: float
    vip: bool
    note: Optional[str]
"""
"""Those of a table of orders besides city, amount and time."""


def orders(imports: str, connector: str, sources: str, fields: str = "") -> str:
    """Return definitions: what to import of connectors, a connector, decorators, more fields."""
    return (
        _DEFINITIONS.replace("{imports}", imports)
        .replace("{connector}", connector)
        .replace("{sources}", sources)
        .replace("{fields}", fields)
    )


def shop_tables(kind: str, connector: str, cursor: str, fields: str = TABLE_FIELDS) -> str:
    """Return definitions of two tables. `connector`: assigns one of this `kind` to `shop`."""
    table = f'@source(shop.table("orders", cursor="{cursor}"), every="5s", disorder="14d", '
    return orders(f"{kind}, source", connector, f'{table}cdc="append")', fields) + _PEOPLE
