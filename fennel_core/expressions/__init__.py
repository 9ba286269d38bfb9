"""The client's expression language, typed and compiled to Polars.

Theory. An expression (`wire.expr`) is a pure function of a row. It is type-checked once against a
schema (`infer`), compiled once to Polars expressions (`compile_columns`), and then run over whole
frames, so the cost per row is that of Polars. Conditions under which a row fails (a text that is
not a date, a null in a column that is not Optional) are compiled to checks, so a bad row is
reported by number and the other rows are computed.

The specification of every rule is the client's own evaluator; `tests/laws/expressions` compares the
two on thousands of expressions. This implementation differs in these points, each listed with its
reason in `tests/laws/expressions/deviations.py`:

* where the client's evaluator fails on a well-typed expression (negated lengths, repeated structs,
  bytes, decimals, …), this one returns a value;
* abs, ceil, floor and round of an int are exact beyond 2^53;
* a constant int divided by zero is null like any other int, not 0;
* in `str.parse` a scalar is not read as a list of one element, and a value that is not an object is
  not read as a struct of nulls;
* lengths are signed, and `~(a <= b)` compares the same values as `a <= b` (the client's library
  wraps the former around and divides ints in the latter);
* zipping empty lists yields an empty list; mapping a list to a constant yields a list of it;
  `repeat` is limited to 10,000 elements;
* lists and structs are equal when their parts are, nulls included; a null dict is null and has no
  length, it is not an empty one;
* `from_epoch` beyond the years 1 to 9999 fails instead of wrapping around;
* a row fails only in the branch of a case that it takes;
* dates need the separators of their pattern; floats written by `json_extract` have a sign in large
  exponents (`1e+20`);
* a regex is a str, and a bounded int is comparable with a bounded float; the client's compiler
  rejects both;
* `now()` is an error where no time is passed in, instead of the wall clock, which a pure package
  must not read.

At the boundary NaN is null, as in the client's data frames: a NaN in a float column is read as
null, a NaN result is returned as null (and fails if the column is not Optional). Within an
expression NaN is kept (`is_nan`).
"""
