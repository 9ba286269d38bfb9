"""The types of the registers of a program, which its batches have as columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from fennel_core.query.bound_expressions import BoundExpressions
from fennel_core.query.program import BoundAlias, QueryProgram
from fennel_core.vocab.dtypes import Dtype


def register_types(program: QueryProgram) -> Mapping[int, Dtype]:
    """Return the type of every register that the program fills."""
    types = {place: dtype for _, dtype, place in program.inputs}
    for level in program.levels:
        for local in level.local:
            match local:
                case BoundAlias(_, out, dtype, _):
                    types[out] = dtype
                case BoundExpressions(outputs=outputs):
                    types.update((out, dtype) for _, dtype, out in outputs)
                case unreachable:
                    assert_never(unreachable)
        for lookup in level.lookups:
            types.update((read.out, read.dtype) for read in lookup.reads)
        for step in level.extractors:
            types.update((out, step.call.outputs[place].dtype) for place, out in step.keep)
    return types
