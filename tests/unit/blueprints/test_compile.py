"""The compiler: which operators are fused, repartitioned or shared between pipelines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fennel_core.blueprints.compile import compile_datasets
from fennel_core.blueprints.logical import AssetKind, Compiled, LogicalJob
from fennel_core.operators import spec
from fennel_core.vocab.dtypes import Str
from fennel_core.vocab.ids import DatasetName
from fennel_core.wire import operators as wire
from tests.support.compiler_inputs import code, derived, node, schema, sourced, webhook

EVENTS = schema("", "user amount city:str")
USERS = schema("user", "city:str")
TOTALS = schema("user", "total")
LATEST = schema("user", "amount city:str")
FOREVER = wire.Forever()
SUM = wire.Sum("total", FOREVER, "amount")
DAILY = wire.Sum("total", wire.Tumbling(86_400_000_000, 0), "amount")


def ref(name: str) -> wire.DatasetRef:
    return wire.DatasetRef(DatasetName(name))


def aggregate(operand: str, *specs: wire.Spec, keys: tuple[str, ...] = ("user",)) -> wire.Aggregate:
    return wire.Aggregate(operand, keys, specs, None, wire.Emit.EAGER)


def drop(operand: str, *columns: str) -> wire.Drop:
    return wire.Drop(operand, columns)


def shape(compiled: Compiled) -> list[str]:
    """Return the jobs in order: their title and the partitioning of each output."""
    return [
        job.title + "".join(f" -> {','.join(o.partition_by) or 'position'}" for o in job.outputs)
        for job in compiled.jobs
    ]


def job(compiled: Compiled, title: str) -> LogicalJob:
    (found,) = [j for j in compiled.jobs if j.title == title]
    return found


def test_no_datasets_compile_to_no_blueprints() -> None:
    assert compile_datasets([], 4).blueprints == ()


def test_a_source_has_a_content_topic_a_raw_topic_and_dead_letters() -> None:
    compiled = compile_datasets([sourced("Events", EVENTS)], 4)
    assert sorted(t.key.kind for t in compiled.topics) == [
        AssetKind.DEAD,
        AssetKind.RAW,
        AssetKind.TOPIC,
    ]
    (source,) = compiled.sources
    (view,) = compiled.datasets
    assert view.topic == source.topic
    assert (source.webhook, source.endpoint, view.served_by, view.is_source) == (
        "hook",
        "Events",
        None,
        True,
    )
    assert compiled.jobs == ()


@pytest.mark.parametrize("flag", ["online", "offline", "looked_up"])
def test_a_keyed_dataset_with_lookups_has_a_table_over_its_topic(flag: str) -> None:
    compiled = compile_datasets([sourced("Users", USERS, **{flag: True})], 4)
    table = job(compiled, "Users: table")
    assert table.step == spec.TableSpec(USERS)
    assert table.inputs == (compiled.datasets[0].topic,)
    assert compiled.datasets[0].served_by == table.key


def test_datasets_that_are_keyless_or_without_lookups_have_no_table() -> None:
    compiled = compile_datasets(
        [sourced("Users", USERS), sourced("Events", EVENTS, looked_up=True)], 4
    )
    assert compiled.jobs == ()


def test_a_pipeline_without_operators_copies_its_dataset() -> None:
    copy = derived("Copy", EVENTS, [node("Events", ref("Events"), EVENTS)])
    compiled = compile_datasets([sourced("Events", EVENTS), copy], 4)
    assert shape(compiled) == ["Copy.p: map -> position"]
    assert compiled.jobs[0].step == spec.MapSpec((EVENTS,), ((),), EVENTS)


def test_consecutive_stateless_operators_are_fused_into_one_job() -> None:
    dropped, renamed = schema("", "user amount"), schema("", "user cents")
    steps = [
        node("Events", ref("Events"), EVENTS),
        node("a", drop("Events", "city"), dropped),
        node("b", wire.Rename("a", (("amount", "cents"),)), renamed),
    ]
    compiled = compile_datasets([sourced("Events", EVENTS), derived("Cents", renamed, steps)], 4)
    assert shape(compiled) == ["Cents.p: map -> position"]
    (only,) = compiled.jobs
    assert isinstance(only.step, spec.MapSpec)
    assert [type(s.op) for s in only.step.branches[0]] == [wire.Drop, wire.Rename]


def test_a_terminal_aggregate_reads_a_shuffle_by_its_keys_and_serves_lookups() -> None:
    steps = [node("Events", ref("Events"), EVENTS), node("t", aggregate("Events", SUM), TOTALS)]
    compiled = compile_datasets([sourced("Events", EVENTS), derived("Totals", TOTALS, steps)], 4)
    assert shape(compiled) == ["Totals.p: map -> user", "Totals.p: aggregate"]
    view = compiled.datasets[1]
    assert (view.topic, view.served_by) == (None, compiled.jobs[1].key)


def test_an_aggregate_with_discrete_windows_has_a_topic_and_a_table() -> None:
    steps = [node("Events", ref("Events"), EVENTS), node("t", aggregate("Events", DAILY), TOTALS)]
    compiled = compile_datasets(
        [sourced("Events", EVENTS), derived("Totals", TOTALS, steps, online=True)], 4
    )
    assert shape(compiled) == [
        "Totals.p: map -> user",
        "Totals.p: aggregate -> user",
        "Totals: table",
    ]


def test_a_keyed_dataset_reaches_an_aggregate_with_validity_intervals() -> None:
    keyed = schema("user", "city amount")
    cities = schema("city", "total")
    steps = [
        node("Users", ref("Users"), keyed),
        node("t", aggregate("Users", SUM, keys=("city",)), cities),
    ]
    compiled = compile_datasets([sourced("Users", keyed), derived("Totals", cities, steps)], 4)
    assert shape(compiled) == ["Totals.p: intervals -> city", "Totals.p: aggregate"]
    assert job(compiled, "Totals.p: intervals").step == spec.IntervalsSpec(
        keyed, spec.with_validity(keyed)
    )
    assert job(compiled, "Totals.p: aggregate").step.input == spec.with_validity(keyed)


def test_a_keyed_left_side_of_a_join_gets_validity_before_it_is_repartitioned() -> None:
    orders, joined = schema("order", "user amount"), schema("order", "user amount city:str")
    steps = [
        node("Orders", ref("Orders"), orders),
        node("a", wire.Filter("Orders", code("lambda df: df.amount > 0")), orders),
        node("Users", ref("Users"), USERS),
        node(
            "j",
            wire.Join("a", "Users", (("user", "user"),), wire.JoinHow.LEFT, None, 0, ()),
            joined,
        ),
    ]
    compiled = compile_datasets(
        [sourced("Orders", orders), sourced("Users", USERS), derived("J", joined, steps)], 4
    )
    assert shape(compiled) == [
        "J.p: filter -> order",
        "J.p: intervals -> user",
        "J.p: join -> order",
    ]
    assert job(compiled, "J.p: join").step.left == spec.with_validity(orders)


def test_grouping_by_the_partitioning_columns_of_the_input_needs_no_shuffle() -> None:
    steps = [
        node("Events", ref("Events"), EVENTS),
        node("d", wire.Dedup("Events", ("user",), None), EVENTS),
        node("t", wire.Latest("d", ("user",)), schema("user", "amount city:str")),
    ]
    compiled = compile_datasets(
        [sourced("Events", EVENTS), derived("L", schema("user", "amount city:str"), steps)], 4
    )
    assert shape(compiled) == ["L.p: map -> user", "L.p: dedup -> user", "L.p: latest -> user"]


def test_code_that_a_pipeline_includes_is_part_of_its_logic() -> None:
    def compiled(helper: str) -> Compiled:
        steps = [
            node("Events", ref("Events"), EVENTS),
            node("a", wire.Filter("Events", code("lambda df: ok(df)")), EVENTS),
        ]
        good = derived("Good", EVENTS, steps)
        assert good.pipeline is not None
        good = replace(good, pipeline=replace(good.pipeline, includes=(code(helper),)))
        return compile_datasets([sourced("Events", EVENTS), good], 4)

    one, two = (compiled(f"def ok(df): return df.amount > {n}").jobs[0].key for n in (1, 2))
    assert one != two
    assert compiled("def ok(df):  # why\n    return df.amount > 1").jobs[0].key == one


def test_the_step_of_a_windowed_groupby_has_its_aggregations() -> None:
    windowed = schema("user window", "orders")
    kind = wire.WindowOp(
        "Events",
        wire.Session(60),
        ("user",),
        "window",
        (wire.Count("orders", FOREVER, None, False, False, False),),
    )
    steps = [node("Events", ref("Events"), EVENTS), node("w", kind, windowed)]
    compiled = compile_datasets([sourced("Events", EVENTS), derived("W", windowed, steps)], 4)
    assert job(compiled, "W.p: windows").step.specs == kind.specs


def test_grouping_keys_are_in_the_order_of_the_dataset_keys() -> None:
    both = schema("city:str user", "total")
    steps = [
        node("Events", ref("Events"), EVENTS),
        node(
            "t", aggregate("Events", SUM, keys=("user", "city")), schema("user city:str", "total")
        ),
    ]
    compiled = compile_datasets([sourced("Events", EVENTS), derived("Totals", both, steps)], 4)
    assert shape(compiled)[0] == "Totals.p: map -> city,user"
    assert compiled.jobs[1].step.keys == ("city", "user")


def test_user_code_is_a_job_of_its_own_between_two_topics() -> None:
    steps = [
        node("Events", ref("Events"), EVENTS),
        node("a", drop("Events", "city"), schema("", "user amount")),
        node("b", wire.Filter("a", code("lambda df: df.amount > 0")), schema("", "user amount")),
        node(
            "c",
            wire.Assign("b", "kind", Str(), code("lambda df: 'x'")),
            schema("", "user amount kind:str"),
        ),
        node("d", drop("c", "amount"), schema("", "user kind:str")),
    ]
    compiled = compile_datasets(
        [sourced("Events", EVENTS), derived("Kinds", schema("", "user kind:str"), steps)], 4
    )
    assert shape(compiled) == [
        "Kinds.p: map -> position",
        "Kinds.p: filter -> position",
        "Kinds.p: assign -> position",
        "Kinds.p: map -> position",
    ]
    assert all(
        isinstance(j.step, spec.UserCodeSpec) == (": map" not in j.title) for j in compiled.jobs
    )


def test_user_code_before_a_groupby_writes_with_the_partitioning_of_the_groupby() -> None:
    steps = [
        node("Events", ref("Events"), EVENTS),
        node("a", wire.Transform("Events", (), code("lambda df: df")), EVENTS),
        node("t", aggregate("a", DAILY), TOTALS),
    ]
    compiled = compile_datasets([sourced("Events", EVENTS), derived("Totals", TOTALS, steps)], 4)
    assert shape(compiled) == ["Totals.p: transform -> user", "Totals.p: aggregate -> user"]


def test_user_code_with_two_consumers_runs_once() -> None:
    steps = [
        node("Events", ref("Events"), EVENTS),
        node("a", wire.Transform("Events", (), code("lambda df: df")), EVENTS),
        node("b", wire.Dropnull("a", ("city",)), EVENTS),
        node("u", wire.Union_(("a", "b")), EVENTS),
    ]
    compiled = compile_datasets([sourced("Events", EVENTS), derived("Both", EVENTS, steps)], 4)
    assert [t for t in shape(compiled) if "transform" in t] == ["Both.p: transform -> position"]


def test_a_join_repartitions_its_left_side_in_the_key_order_of_the_right() -> None:
    places = schema("zip city:str", "country:str")
    joined = schema("", "user amount city:str code country:str")
    left = schema("", "user amount city:str code")
    steps = [
        node("Left", ref("Left"), left),
        node("Places", ref("Places"), places),
        node(
            "j",
            wire.Join(
                "Left",
                "Places",
                (("city", "city"), ("code", "zip")),
                wire.JoinHow.INNER,
                None,
                0,
                (),
            ),
            joined,
        ),
    ]
    compiled = compile_datasets(
        [sourced("Left", left), sourced("Places", places), derived("J", joined, steps)], 4
    )
    assert shape(compiled) == ["J.p: map -> code,city", "J.p: join -> position"]
    assert job(compiled, "J.p: join").inputs[1] == compiled.datasets[1].topic
    step = job(compiled, "J.p: join").step
    assert isinstance(step, spec.JoinSpec)
    assert (step.left_on, step.right_values, step.inner) == (("code", "city"), ("country",), True)


def test_a_union_is_one_job_and_its_second_branch_over_one_topic_reads_a_copy() -> None:
    steps = [
        node("Events", ref("Events"), EVENTS),
        node("a", wire.Dropnull("Events", ("city",)), EVENTS),
        node("u", wire.Union_(("Events", "a")), EVENTS),
    ]
    compiled = compile_datasets([sourced("Events", EVENTS), derived("Both", EVENTS, steps)], 4)
    assert shape(compiled) == ["Both.p: copy -> position", "Both.p: map -> position"]
    assert len(set(job(compiled, "Both.p: map").inputs)) == 2


def test_a_dataset_joined_with_itself_reads_a_copy_on_the_left() -> None:
    joined = schema("user", "city:str other:str")
    steps = [
        node("Users", ref("Users"), USERS),
        node("r", wire.Rename("Users", (("city", "other"),)), schema("user", "other:str")),
        node(
            "j",
            wire.Join("r", "Users", (("user", "user"),), wire.JoinHow.INNER, None, 0, ()),
            joined,
        ),
    ]
    direct = [
        node("Users", ref("Users"), USERS),
        node(
            "j",
            wire.Join(
                "Users", "Users", (("user", "user"),), wire.JoinHow.INNER, None, 0, ("city",)
            ),
            USERS,
        ),
    ]
    compiled = compile_datasets(
        [sourced("Users", USERS), derived("J", joined, steps), derived("K", USERS, direct)], 4
    )
    assert all(len(set(j.inputs)) == len(j.inputs) for j in compiled.jobs)
    assert shape(compiled) == [
        "J.p: map -> user",
        "J.p: intervals -> user",
        "J.p: join -> user",
        "K.p: intervals -> user",
        "K.p: join -> user",
    ]


def test_two_pipelines_with_the_same_first_operators_share_a_shuffle() -> None:
    first = [node("Events", ref("Events"), EVENTS), node("t", aggregate("Events", SUM), TOTALS)]
    second = [
        node("Events", ref("Events"), EVENTS),
        node("l", wire.Latest("Events", ("user",)), LATEST),
    ]
    compiled = compile_datasets(
        [sourced("Events", EVENTS), derived("One", TOTALS, first), derived("Two", LATEST, second)],
        4,
    )
    assert shape(compiled) == ["One.p: map -> user", "One.p: aggregate", "Two.p: latest -> user"]


def test_a_step_that_closes_windows_reads_a_shuffle_with_a_watermark() -> None:
    def totals(spec_: wire.Spec) -> list[object]:
        return [
            node("Events", ref("Events"), EVENTS),
            node("t", aggregate("Events", spec_), TOTALS),
        ]

    one = derived("One", TOTALS, totals(SUM))
    two = derived("Two", TOTALS, totals(DAILY))
    compiled = compile_datasets([sourced("Events", EVENTS), one, two], 4)
    assert shape(compiled) == [
        "One.p: map -> user",
        "One.p: aggregate",
        "Two.p: map -> user",
        "Two.p: aggregate -> user",
    ]
    assert [[o.watermark for o in job.outputs] for job in compiled.jobs] == [
        [False],
        [],
        [True],
        [False],
    ]


def test_a_join_before_windows_writes_a_watermark_that_later_jobs_forward() -> None:
    joined = schema("", "user amount city:str place:str")
    steps = [
        node("Events", ref("Events"), EVENTS),
        node("Users", ref("Users"), schema("user", "place:str")),
        node(
            "j",
            wire.Join("Events", "Users", (("user", "user"),), wire.JoinHow.INNER, None, 0, ()),
            joined,
        ),
        node("d", drop("j", "place"), EVENTS),
    ]
    sources = [sourced("Events", EVENTS), sourced("Users", schema("user", "place:str"))]
    closing = derived("T", TOTALS, [*steps, node("t", aggregate("d", DAILY), TOTALS)])
    moving = derived("T", TOTALS, [*steps, node("t", aggregate("d", SUM), TOTALS)])
    titles = ["T.p: map -> user", "T.p: join -> position", "T.p: map -> user"]
    for pipeline, carries in (
        (closing, [[False], [True], [True], [False]]),
        (moving, [[False], [False], [False], []]),
    ):
        compiled = compile_datasets([*sources, pipeline], 4)
        assert shape(compiled)[:3] == titles
        assert [[o.watermark for o in job.outputs] for job in compiled.jobs] == carries


def test_operators_keep_their_schemas() -> None:
    steps = [
        node("Events", ref("Events"), EVENTS),
        node("d", wire.Dedup("Events", (), None), EVENTS),
        node("l", wire.Latest("d", ("user",)), schema("user", "amount city:str")),
        node("c", wire.Changelog("l", "gone", True), schema("", "user amount city:str gone")),
    ]
    compiled = compile_datasets(
        [sourced("Events", EVENTS), derived("C", schema("", "user amount city:str gone"), steps)], 4
    )
    assert shape(compiled) == [
        "C.p: map -> user,amount,city",
        "C.p: dedup -> user",
        "C.p: latest -> user",
        "C.p: changelog -> position",
    ]
    assert job(compiled, "C.p: dedup").step == spec.DedupSpec(
        EVENTS, ("user", "amount", "city"), None, EVENTS
    )


def test_two_datasets_with_one_source_share_a_topic() -> None:
    source = webhook("clicks")
    compiled = compile_datasets(
        [sourced("A", EVENTS, source=source), sourced("B", EVENTS, source=source)], 4
    )
    assert len({d.topic for d in compiled.datasets}) == 1
    assert len(compiled.sources) == 2
    assert len({s.identity for s in compiled.sources}) == 1
