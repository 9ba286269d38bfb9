"""The client's expression language, typed and compiled to Polars.

Theory. An expression (`wire.expr`) is a pure function of a row. It is judged once against a schema
(`infer`), compiled once to Polars expressions (`compile_expr`, `compile_columns`), and then run
over whole frames, so the cost per row is that of Polars. What a row can fail at (a text that is no
date, a null where the type has none) is compiled along as checks, so a bad row is named and set
aside while its neighbours go on.

The authority on every rule is the client's own evaluator; `tests/laws/expressions` asks it about
thousands of expressions. We differ from it in these points, each listed with its reason in
`tests/laws/expressions/deviations.py`:

* where it breaks down on a well-typed expression (negated lengths, repeated structs, bytes,
  decimals, …), we answer;
* abs, ceil, floor and round of an int are exact beyond 2^53;
* a constant int divided by zero is null like any other int, not 0;
* in `str.parse` a scalar is no list of one, and what is no object is no struct of nulls;
* lengths are signed, and `~(a <= b)` compares what `a <= b` compares (its library wraps the one
  around and divides ints in the other);
* zipped empty lists are an empty list; a map to a constant is a list of it; `repeat` stops at
  10,000 members;
* lists and structs are equal when their parts are, nulls included; a null dict is null and has no
  length, it is not an empty one;
* `from_epoch` beyond the years 1 to 9999 fails instead of wrapping around;
* a row fails only in the branch of a case that it takes;
* dates need the separators of their pattern; floats that `json_extract` writes have a sign in large
  exponents (`1e+20`);
* a regex is a str, and a bounded int meets a bounded float, where the client's compiler rejects
  both;
* `now()` is an error where no time was given, instead of the wall clock, which a pure room must not
  read.

At the door NaN is null, as it is in the client's data frames: a NaN in a float column is read as
null, a NaN result is returned as null (and fails where the column is not Optional). Within an
expression NaN lives on (`is_nan`).
"""
