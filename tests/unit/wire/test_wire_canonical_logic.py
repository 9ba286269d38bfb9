"""Which changes of an entity change its logic."""

from dataclasses import replace
from pathlib import Path

from fennel_core.wire.canonical_logic import (
    dataset_logic,
    extractor_logic,
    feature_logic,
    index_logic,
    operator_logic,
    pipeline_logic,
    source_logic,
)
from fennel_core.wire.connectors import MySQLTable, PlainSecret
from fennel_core.wire.decode import decode_sync_request
from fennel_core.wire.entities import PyFunc
from fennel_core.wire.operators import Assign, Filter, WindowOp

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "wire"


def commit(subject: str):
    return decode_sync_request((GOLDEN / f"{subject}.binpb").read_bytes())


def edited(pycode, old: str, new: str):
    assert old in pycode.core_code
    return replace(
        pycode,
        core_code=pycode.core_code.replace(old, new),
        generated_code="other",
        entry_point="other",
    )


def operators_of(request, dataset):
    pipeline = next(p for p in request.pipelines if p.dataset == dataset)
    return pipeline, [
        o for o in request.operators if (o.dataset, o.pipeline) == (dataset, pipeline.name)
    ]


def test_decoding_twice_gives_the_same_logic_for_every_entity():
    for subject in ("operators", "expressions", "connectors", "featuresets"):
        first, second = commit(subject), commit(subject)
        assert list(map(dataset_logic, first.datasets)) == list(map(dataset_logic, second.datasets))
        assert list(map(operator_logic, first.operators)) == list(
            map(operator_logic, second.operators)
        )
        assert list(map(source_logic, first.sources)) == list(map(source_logic, second.sources))
        assert list(map(extractor_logic, first.extractors)) == list(
            map(extractor_logic, second.extractors)
        )


def test_operators_of_a_recorded_commit_that_differ_have_different_logic():
    request = commit("operators")
    kinds = {operator.kind for operator in request.operators}
    assert len({operator_logic(o) for o in request.operators}) > len(kinds) / 2


def test_the_order_of_operands_is_logic_but_not_their_ids():
    pipeline, operators = operators_of(commit("operators"), "Both")
    renamed = [
        replace(
            o,
            id="x" + o.id,
            kind=replace(o.kind, operand="x" + o.kind.operand)
            if hasattr(o.kind, "operand")
            else o.kind,
        )
        for o in operators
    ]
    renamed = [
        replace(o, kind=replace(o.kind, operands=tuple("x" + i for i in o.kind.operands)))
        if o.is_root
        else o
        for o in renamed
    ]
    assert pipeline_logic(pipeline, renamed) == pipeline_logic(pipeline, operators)
    swapped = [
        replace(o, kind=replace(o.kind, operands=o.kind.operands[::-1])) if o.is_root else o
        for o in operators
    ]
    assert pipeline_logic(pipeline, swapped) != pipeline_logic(pipeline, operators)


def test_an_operators_logic_includes_its_code_and_its_pipelines_includes():
    pipeline, operators = operators_of(commit("operators"), "Stateless")
    assign = next(o for o in operators if isinstance(o.kind, Assign))
    before = operator_logic(assign, pipeline)
    commented = replace(
        assign, kind=replace(assign.kind, pycode=edited(assign.kind.pycode, "df:", "df :"))
    )
    assert operator_logic(commented, pipeline) == before
    changed = replace(
        assign, kind=replace(assign.kind, pycode=edited(assign.kind.pycode, "*", "+"))
    )
    assert operator_logic(changed, pipeline) != before
    include = edited(pipeline.pycode.includes[0], "100", "101")
    assert (
        operator_logic(
            assign, replace(pipeline, pycode=replace(pipeline.pycode, includes=(include,)))
        )
        != before
    )
    native = next(o for o in operators if not isinstance(o.kind, Assign | Filter))
    elsewhere = replace(pipeline, pycode=replace(pipeline.pycode, includes=(include,)))
    assert operator_logic(native, elsewhere) == operator_logic(native, pipeline)


def test_the_pipelines_text_represents_unknown_specs():
    pipeline, operators = operators_of(commit("operators"), "Sessions")
    window = next(o for o in operators if isinstance(o.kind, WindowOp))
    changed = replace(pipeline, pycode=edited(pipeline.pycode, "Count()", "Count(of='city')"))
    assert operator_logic(window, changed) != operator_logic(window, pipeline)


def test_a_datasets_logic_is_its_schema_and_retention_only():
    dataset = commit("operators").datasets[0]
    same = replace(
        dataset,
        name="Other",
        version=9,
        metadata=replace(dataset.metadata, owner="x"),
        field_metadata=(),
    )
    assert dataset_logic(same) == dataset_logic(dataset)
    assert dataset_logic(replace(dataset, history_us=1)) != dataset_logic(dataset)
    assert dataset_logic(
        replace(dataset, schema=replace(dataset.schema, timestamp="other"))
    ) != dataset_logic(dataset)


def test_a_sources_logic_changes_with_its_table_not_with_its_password_or_interval():
    source = next(
        s
        for s in commit("connectors").sources
        if isinstance(s.table, MySQLTable) and s.table.db.name == "mysql"
    )
    login = replace(source.table.db.login, password=PlainSecret("new"))
    rotated = replace(
        source, table=replace(source.table, db=replace(source.table.db, login=login)), every_us=1
    )
    assert source_logic(rotated) == source_logic(source)
    assert source_logic(
        replace(source, table=replace(source.table, table="other"))
    ) != source_logic(source)
    assert source_logic(replace(source, disorder_us=1)) != source_logic(source)


def test_an_extractor_changes_with_its_code_inputs_and_includes():
    extractor = next(x for x in commit("featuresets").extractors if isinstance(x.kind, PyFunc))
    before = extractor_logic(extractor)
    assert extractor_logic(replace(extractor, version=9)) == before
    assert extractor_logic(replace(extractor, inputs=extractor.inputs[::-1])) != before
    code = extractor.kind.pycode
    documented = replace(extractor, kind=PyFunc(edited(code, "Say it loudly.", "Shout.")))
    assert extractor_logic(documented) == before
    include = edited(code.includes[0], "upper", "lower")
    assert (
        extractor_logic(replace(extractor, kind=PyFunc(replace(code, includes=(include,)))))
        != before
    )


def test_features_and_indices_have_logic_of_their_own():
    request = commit("featuresets")
    assert len({feature_logic(f) for f in request.features}) > 5
    assert len({index_logic(i) for i in request.indices}) == 2
