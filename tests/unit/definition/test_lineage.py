"""Tags flow downstream along pipelines, each dataset's computed once."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from fennel_core.definition.lineage import BranchVersion


def version(tags: dict[str, list[str]], inputs: dict[str, list[str]]) -> BranchVersion:
    request: Any = SimpleNamespace(
        datasets=[
            SimpleNamespace(name=name, metadata=SimpleNamespace(tags=tuple(own)))
            for name, own in tags.items()
        ],
        pipelines=[
            SimpleNamespace(dataset=dataset, inputs=tuple(read)) for dataset, read in inputs.items()
        ],
    )
    catalog: Any = SimpleNamespace(datasets=())
    return BranchVersion(request, catalog)


def test_a_dataset_has_its_own_tags_and_those_of_everything_upstream() -> None:
    found = version(
        {"A": ["a"], "B": ["b"], "C": [], "D": ["d"], "Alone": []},
        {"C": ["A", "B"], "D": ["C", "A"]},
    ).upstream_tags
    assert found == {
        "A": {"a"},
        "B": {"b"},
        "C": {"a", "b"},
        "D": {"a", "b", "d"},
        "Alone": frozenset(),
    }


def test_a_chain_of_a_thousand_datasets_needs_no_deep_recursion() -> None:
    names = [f"D{n}" for n in range(1000)]
    found = version(
        {name: [] for name in names} | {"D0": ["pii"]},
        {name: [before] for before, name in pairwise(names)},
    ).upstream_tags
    assert found["D999"] == {"pii"}
