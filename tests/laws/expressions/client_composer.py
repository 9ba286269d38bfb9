"""Random well-typed expressions over the frame `mixed`, as source text."""

import random

DEPTH = 4
LEAF_SHARE = 0.15
"""Probability of a column where the depth still allows a function."""


PLAIN = {
    "int": (
        "(<<int>> + <<int>>)",
        "(<<int>> - <<int>>)",
        "(<<int>> * <<int>>)",
        "(-<<int>>)",
        "(<<int>> // <<int>>)",
        "(<<int>> % <<int>>)",
        "<<str>>.str.len()",
        "<<ints>>.list.len()",
        "<<ints>>.list.sum()",
        "<<oint>>.fillnull(<<int>>)",
        "when(<<obool>>).then(<<int>>).otherwise(<<int>>)",
        "<<time>>.dt.year",
        "<<time>>.dt.since_epoch('hour')",
        "<<time>>.dt.since(<<time>>, 'day')",
        "when(<<bool>>).then(<<int>>).when(<<bool>>).then(<<int>>).otherwise(<<int>>)",
    ),
    "float": (
        "(<<int>> / <<int>>)",
        "(<<float>> + <<int>>)",
        "(<<float>> * <<float>>)",
        "(<<float>> % <<float>>)",
        "(<<float>> // <<int>>)",
        "<<float>>.num.abs()",
        "<<float>>.num.round(1)",
        "<<ofloat>>.fillnull(<<float>>)",
        "<<floats>>.list.sum()",
        "when(<<bool>>).then(<<float>>).otherwise(<<int>>)",
        "<<int>>.num.sin()",
    ),
    "bool": (
        "(<<int>> > <<int>>)",
        "(<<float>> <= <<int>>)",
        "(<<str>> == <<str>>)",
        "(<<bool>> & <<bool>>)",
        "(<<bool>> | <<bool>>)",
        "(~<<bool>>)",
        "<<oint>>.isnull()",
        "<<ostr>>.isnull()",
        "<<obool>>.fillnull(<<bool>>)",
        "<<str>>.str.contains(<<str>>)",
        "<<str>>.str.startswith(<<str>>)",
        "<<ints>>.list.contains(<<int>>)",
        "(<<int>> != <<float>>)",
        "<<oints>>.list.hasnull()",
        "(<<time>> == <<time>>)",
    ),
    "str": (
        "<<str>>.str.concat(<<str>>)",
        "<<str>>.str.upper()",
        "<<int>>.num.to_string()",
        "<<ostr>>.fillnull(<<str>>)",
        "when(<<bool>>).then(<<str>>).otherwise(<<str>>)",
        "<<time>>.dt.strftime('%Y/%m/%d %H')",
    ),
    "time": (
        "from_epoch(<<int>>, 'second')",
        "<<otime>>.fillnull(<<time>>)",
        "when(<<bool>>).then(<<time>>).otherwise(<<time>>)",
    ),
    "ints": (
        "<<ints>>.list.filter('v', var('v') > 1)",
        "<<ints>>.list.map('v', var('v') * 2)",
        "when(<<bool>>).then(<<ints>>).otherwise(<<ints>>)",
        "<<strs>>.list.map('v', var('v').str.len())",
    ),
    "oints": (
        "<<oints>>.list.map('v', var('v') + 1)",
        "<<oints>>.list.filter('v', (var('v') > 0).fillnull(True))",
    ),
    "floats": (
        "<<ints>>.list.map('v', var('v') / 2)",
        "<<floats>>.list.map('v', var('v') + 1)",
    ),
    "strs": (
        "<<str>>.str.split('a')",
        "<<strs>>.list.filter('v', var('v').str.len() > 0)",
    ),
}
OPTIONAL = {
    "oint": (
        "(<<oint>> + <<int>>)",
        "(<<int>> * <<oint>>)",
        "<<ints>>.list.max()",
        "<<ints>>.list.at(<<int>> % 5)",
        "<<oints>>.list.sum()",
        "(<<oint>> // <<int>>)",
        "<<ostr>>.str.len()",
    ),
    "ofloat": (
        "(<<ofloat>> / <<int>>)",
        "<<ints>>.list.mean()",
        "(<<oint>> * <<float>>)",
        "<<ofloat>>.num.sqrt()",
        "<<ofloat>>.num.round(2)",
    ),
    "obool": (
        "(<<obool>> & <<obool>>)",
        "(<<obool>> | <<bool>>)",
        "(~<<obool>>)",
        "(<<oint>> > <<float>>)",
        "(<<ostr>> == <<str>>)",
        "<<oints>>.list.contains(<<int>>)",
    ),
    "ostr": (
        "<<ostr>>.str.concat(<<str>>)",
        "<<strs>>.list.at(<<int>> % 3)",
        "<<oint>>.num.to_string()",
    ),
    "otime": ("from_epoch(<<oint>>, 'millisecond')",),
}
"""Productions per type; `<<type>>` is a placeholder for an expression of that type."""
REQUIRED = {"oint": "int", "ofloat": "float", "obool": "bool", "ostr": "str", "otime": "time"}


def productions(wanted):
    if wanted not in OPTIONAL:
        return PLAIN[wanted]
    plain = REQUIRED[wanted]
    return (
        f"when(<<bool>>).then(<<{plain}>>)",
        f"when(<<obool>>).then(<<{wanted}>>).otherwise(<<{plain}>>)",
        *OPTIONAL[wanted],
    )


class Composer:
    """Composes random well-typed expressions, as source text.

    `pick` chooses a production for the requested type until the depth is used up.
    """

    def __init__(self, seed):
        self.random = random.Random(seed)  # noqa: S311  # repeatable, and no secret

    def expression(self):
        return "mixed", self.pick(
            self.random.choice(
                ["int", "float", "bool", "str", "oint", "ofloat", "time", "ints", "strs"]
            ),
            DEPTH,
        )

    def pick(self, wanted, depth):
        options = (
            self.leaves(wanted)
            if depth == 0 or self.random.random() < LEAF_SHARE
            else productions(wanted)
        )
        source = self.random.choice(options)
        while "<<" in source:
            start, end = source.index("<<"), source.index(">>")
            source = (
                source[:start] + self.pick(source[start + 2 : end], depth - 1) + source[end + 2 :]
            )
        return source

    def leaves(self, wanted):
        """Return columns, not constants.

        The client's evaluator folds constants incorrectly (see the deviations), which would hide
        every other difference.
        """
        columns = {
            "int": ["i", "j"],
            "oint": ["oi"],
            "float": ["f", "g"],
            "ofloat": ["of"],
            "bool": ["p", "q"],
            "obool": ["op"],
            "str": ["s", "t"],
            "ostr": ["os"],
            "time": ["d", "e"],
            "otime": ["od"],
            "ints": ["li"],
            "oints": ["loi"],
            "floats": ["lf"],
            "strs": ["ls"],
        }
        return [f"col('{c}')" for c in columns[wanted]]
