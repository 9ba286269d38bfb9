"""The names in scope at one point of an expression.

In scope are the columns of the schema or, inside a lambda, the one element variable.

Theory. The language has no closures: the body of `list.filter` and `list.map` reads the element and
constants, never a column, and lambdas do not nest. Therefore a lambda can run over the flattened
elements of all rows at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fennel_core.expressions.errors import InvalidExpression
from fennel_core.vocab.dtypes import Dtype, Timestamp


@dataclass(frozen=True, slots=True)
class NameScope:
    """The schema and, inside a lambda, the name and type of its variable."""

    schema: Mapping[str, Dtype]
    element: tuple[str, Dtype] | None = None

    def column(self, name: str) -> Dtype:
        """Return the type of a column."""
        if self.element is not None:
            raise InvalidExpression(
                "column-in-lambda",
                f"column `{name}` is used inside a list lambda, which only sees its "
                f"variable `{self.element[0]}` and constants. "
                "Zip the column into the list first, or use it outside.",
            )
        try:
            return self.schema[name]
        except KeyError:
            raise InvalidExpression(
                "unknown-column",
                f"column `{name}` is not in the schema. Use one of: "
                f"{', '.join(f'`{n}`' for n in self.schema)}.",
            ) from None

    def now(self) -> Dtype:
        """Return the type of `now()`."""
        if self.element is not None:
            raise InvalidExpression(
                "now-in-lambda",
                "now() is used inside a list lambda, which only sees its variable. Use it outside.",
            )
        return Timestamp()

    def variable(self, name: str) -> Dtype:
        """Return the type of the lambda variable."""
        if self.element is None or self.element[0] != name:
            bound = (
                f"only `{self.element[0]}` is bound here"
                if self.element
                else "no list lambda encloses it"
            )
            raise InvalidExpression(
                "unknown-variable",
                f"variable `{name}` is not bound: {bound}. Use the variable that the lambda names.",
            )
        return self.element[1]

    def inside(self, variable: str, element: Dtype) -> NameScope:
        """Return the scope of a lambda's body."""
        if self.element is not None:
            raise InvalidExpression(
                "nested-lambda",
                f"a list lambda over `{variable}` is nested in the lambda over "
                f"`{self.element[0]}`. Lambdas do not nest: "
                "compute the inner list in an earlier expression.",
            )
        return NameScope(self.schema, (variable, element))
