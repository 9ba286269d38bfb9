"""Identities depend on logic only, and a change renames exactly the assets downstream of it.

The oracle for "downstream" is reachability in a small random graph; it does not use hashes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from fennel_core.blueprints.compile import compile_datasets
from fennel_core.blueprints.compiler_input import DatasetInput
from fennel_core.blueprints.identity import code_logic
from fennel_core.blueprints.logical import Compiled
from fennel_core.vocab.ids import DatasetName
from fennel_core.wire import operators as wire
from fennel_core.wire.connectors import Login, PlainSecret, Webhook, WebhookEndpoint
from tests.support.compiler_inputs import NOTHING, code, derived, node, schema, sourced, webhook

EVENTS = schema("", "user amount")
LETTERS = "abcdefgh"


@dataclass(frozen=True)
class Drawing:
    """Datasets `a`, `b`, …; dataset i reads those in `inputs[i]`, all of them earlier ones.

    A dataset without inputs is a source.
    """

    inputs: tuple[tuple[int, ...], ...]

    def downstream(self, start: int) -> set[int]:
        reached = {start}
        for i, inputs in enumerate(self.inputs):
            if reached & set(inputs):
                reached.add(i)
        return reached


@st.composite
def drawings(draw: st.DrawFn) -> Drawing:
    size = draw(st.integers(1, len(LETTERS)))
    inputs = [
        tuple(sorted(draw(st.sets(st.integers(0, i - 1), max_size=3)))) if i else ()
        for i in range(size)
    ]
    return Drawing(tuple(inputs))


def datasets_of(
    drawing: Drawing,
    *,
    versions: dict[int, int] | None = None,
    text: dict[int, str] | None = None,
    letters: str = LETTERS,
) -> list[DatasetInput]:
    """Return a dataset per node of the drawing.

    Every derived dataset is the union of its inputs, followed by a native operator and user code,
    so each has logic of its own. `letters` are the names of the datasets and of the operators that
    reference them; names of endpoints do not change.
    """
    made = []
    for i, inputs in enumerate(drawing.inputs):
        name, version = letters[i], (versions or {}).get(i, 1)
        own = (text or {}).get(i, f"def f(df): return df[df.amount > {i}]")
        if not inputs:
            made.append(
                sourced(
                    name,
                    EVENTS,
                    version=version,
                    source=webhook(f"endpoint {i} {own if text else ''}"),
                )
            )
            continue
        refs = [node(letters[j], wire.DatasetRef(DatasetName(letters[j])), EVENTS) for j in inputs]
        (u, n, f) = (f"{kind} of {name}" for kind in ("union", "dropnull", "filter"))
        flow = [
            node(u, wire.Union_(tuple(r.id for r in refs)), EVENTS),
            node(n, wire.Dropnull(u, ("amount",)), EVENTS),
            node(f, wire.Filter(n, code(own)), EVENTS),
        ]
        made.append(derived(name, EVENTS, [*refs, *flow], version=version))
    return made


def contents(compiled: Compiled) -> list[str]:
    """Return the identity of each dataset's content, in order."""
    return [d.topic.identity for d in compiled.datasets if d.topic is not None]


@settings(max_examples=40, deadline=None)
@given(drawings(), st.integers(1, 64))
def test_compiling_twice_gives_equal_values(drawing: Drawing, partitions: int) -> None:
    assert compile_datasets(datasets_of(drawing), partitions) == compile_datasets(
        datasets_of(drawing), partitions
    )


@settings(max_examples=40, deadline=None)
@given(drawings(), st.data())
def test_raising_a_version_renames_the_dataset_and_its_downstream_only(
    drawing: Drawing, data: st.DataObject
) -> None:
    changed = data.draw(st.integers(0, len(drawing.inputs) - 1))
    before = contents(compile_datasets(datasets_of(drawing), 4))
    after = contents(compile_datasets(datasets_of(drawing, versions={changed: 2}), 4))
    renamed = {i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b}
    assert renamed == drawing.downstream(changed)


@settings(max_examples=40, deadline=None)
@given(drawings(), st.data())
def test_changing_code_renames_the_dataset_and_its_downstream_only(
    drawing: Drawing, data: st.DataObject
) -> None:
    changed = data.draw(st.integers(0, len(drawing.inputs) - 1))
    same = {i: f"def f(df): return df[df.amount > {i}]" for i in range(len(drawing.inputs))}
    before = contents(compile_datasets(datasets_of(drawing, text=same), 4))
    after = contents(
        compile_datasets(datasets_of(drawing, text=same | {changed: "def f(df): return df"}), 4)
    )
    renamed = {i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b}
    assert renamed == drawing.downstream(changed)


@settings(max_examples=40, deadline=None)
@given(drawings())
def test_different_contents_have_different_names(drawing: Drawing) -> None:
    names = contents(compile_datasets(datasets_of(drawing), 4))
    assert len(set(names)) == len(names)


@settings(max_examples=40, deadline=None)
@given(drawings(), st.permutations(LETTERS))
def test_names_of_datasets_and_ids_of_operators_are_not_part_of_an_identity(
    drawing: Drawing, letters: list[str]
) -> None:
    named, renamed = (
        compile_datasets(datasets_of(drawing), 4),
        compile_datasets(datasets_of(drawing, letters="".join(letters)), 4),
    )
    assert [b.key for b in named.blueprints] == [b.key for b in renamed.blueprints]


@settings(max_examples=40, deadline=None)
@given(drawings())
def test_owners_and_descriptions_are_not_part_of_an_identity(drawing: Drawing) -> None:
    other = replace(NOTHING, owner="other@x", description="other", tags=("t",), deprecated=True)
    plain = datasets_of(drawing)
    dressed = [
        replace(
            s,
            dataset=replace(
                s.dataset,
                metadata=other,
                history_us=1,
                pycode=code("class Other: ..."),
                erase_keys=("user",),
            ),
        )
        for s in plain
    ]
    assert contents(compile_datasets(plain, 4)) == contents(compile_datasets(dressed, 4))


@settings(max_examples=40, deadline=None)
@given(drawings())
def test_the_number_of_partitions_is_not_part_of_an_identity(drawing: Drawing) -> None:
    four, eight = (compile_datasets(datasets_of(drawing), n) for n in (4, 8))
    assert [b.key for b in four.blueprints] == [b.key for b in eight.blueprints]


def identity_of(**changes: object) -> str:
    (source,) = compile_datasets([sourced("A", EVENTS, source=webhook("e", **changes))], 4).sources
    return source.identity


def test_the_identity_of_a_source_depends_on_its_rows_only() -> None:
    base = identity_of()
    table = WebhookEndpoint(Webhook("hook", 7), "e")
    assert identity_of(every_us=5, version=9) == base, (
        "poll interval and version of a source do not change its rows"
    )
    assert identity_of(table=replace(table, db=Webhook("hook", 99))) == base, (
        "the retention of an endpoint does not change its rows"
    )
    different = {
        identity_of(table=replace(table, endpoint="other")),
        identity_of(table=replace(table, db=Webhook("other", 7))),
        identity_of(disorder_us=15),
        identity_of(since_us=1),
        identity_of(until_us=1),
        identity_of(bounded=True, idleness_us=4),
        identity_of(cursor="id"),
    }
    assert len(different | {base}) == 8


def test_a_rotated_password_changes_no_identity() -> None:
    from fennel_core.wire import connectors

    def source(password: str, host: str = "h") -> str:
        login = Login(PlainSecret("user"), PlainSecret(password))
        table = connectors.MySQLTable(
            connectors.MySQL("db", host, 3306, "shop", "", login), "orders"
        )
        compiled = compile_datasets([sourced("A", EVENTS, source=webhook("e", table=table))], 4)
        assert "secret word" not in repr(compiled)
        return contents(compiled)[0]

    assert source("secret word") == source("another")
    assert source("secret word") != source("secret word", host="elsewhere")


def test_comments_and_layout_are_not_part_of_logic_but_nesting_is() -> None:
    plain = code_logic(code("def f(df):\n    if x:\n        y()\n    return df\n"))
    assert (
        code_logic(code("def f(df):  # why\n\n  # more\n  if x:\n      y()\n\n  return df\n"))
        == plain
    )
    assert code_logic(code("def f(df):\n    if x:\n        y()\n        return df\n")) != plain
    assert code_logic(code("lambda df: df['a']  # cut out of its line)")) == code_logic(
        code("lambda df:  df['a']")
    )
    helper = code("def g(): return 1\n")
    assert code_logic(code("f", helper)) != code_logic(code("f", code("def g(): return 2\n")))
