"""The trigger form's schemas accept what a person and the definition server send, and nothing
else.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest

from fennel_core.ledger.errors import DataLossNotConfirmed
from fennel_core.ledger.store import CommitOptions
from tests.dags import conftest as _configured  # noqa: F401  # Airflow is configured before its first import

from airflow.sdk.definitions.param import ParamsDict  # isort: skip
from airflow.sdk.exceptions import AirflowFailException, ParamValidationError  # isort: skip
from fennel_airflow import task_bodies  # isort: skip
from fennel_airflow.factory import COMMIT_PARAMS, DRILL_PARAMS, RECOVERY_PARAMS  # isort: skip


def _validated(conf: Mapping[str, Any], form: Mapping[str, Any] = COMMIT_PARAMS) -> dict[str, Any]:
    params = ParamsDict(copy.deepcopy(dict(form)))
    params.update(conf)
    return dict(params.validate())


def test_the_definition_server_sends_the_commits_id_alone() -> None:
    assert _validated({"commit_id": "c1"})["commit_id"] == "c1"


def test_a_user_fills_in_the_other_fields() -> None:
    conf = {
        "definitions": "examples/fraud",
        "workspace": "shop",
        "branch": "feature/x",
        "message": "more",
        "env": "prod",
        "preview": True,
    }
    params = _validated(conf)
    assert {name: params[name] for name in conf} == conf
    assert (params["incremental"], params["backfill"], params["commit_id"]) == (False, True, None)


@pytest.mark.parametrize(
    "conf",
    [
        {"workspace": "Shop"},
        {"workspace": "a" * 64},
        {"branch": "with space"},
        {"branch": ""},
        {"definitions": ""},
        {"preview": "yes"},
        {"backfill": None},
        {"message": "a" * 10_001},
        {"commit_id": 7},
    ],
)
def test_an_invalid_value_is_refused_before_a_run_starts(conf: dict[str, Any]) -> None:
    with pytest.raises(ParamValidationError):
        _validated(conf)


@pytest.mark.parametrize("step", ["submit_commit", "preview_commit"])
@pytest.mark.parametrize("conf", [{}, {"allow_data_loss": False}, {"allow_data_loss": True}])
def test_the_form_confirms_a_loss_of_rows_only_if_that_is_ticked(
    monkeypatch: pytest.MonkeyPatch, step: str, conf: dict[str, bool]
) -> None:
    sent: list[CommitOptions] = []

    def record(
        _workspace: str, _branch: str, _body: bytes, options: CommitOptions, *_actor: str
    ) -> str:
        sent.append(options)
        return ""

    monkeypatch.setattr(task_bodies, "_submission", lambda *_: ("shop", "main", b""))
    monkeypatch.setattr(task_bodies.commit_steps, step, record)
    getattr(task_bodies, step)(_validated(conf), "ann")
    assert [options.allow_data_loss for options in sent] == [conf.get("allow_data_loss", False)]


def test_a_loss_that_is_not_confirmed_fails_the_task_without_a_retry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(*_: object) -> None:
        raise DataLossNotConfirmed(["- release and destroy endpoint of app/Profiles"])

    monkeypatch.setattr(task_bodies, "_run_step", refuse)
    with pytest.raises(AirflowFailException, match=r"app/Profiles(.|\n)*data-loss-not-confirmed"):
        task_bodies.compile_commit("c1", 0.0)


def test_every_field_of_the_rebuild_form_is_optional() -> None:
    empty = {
        "workspace": None,
        "dataset": None,
        "jobs": [],
        "partitions": [],
        "before": None,
        "dry_run": False,
    }
    assert _validated({}, RECOVERY_PARAMS) == empty
    filled = {
        "workspace": "shop",
        "dataset": "Order",
        "jobs": ["shop.job.a.1"],
        "partitions": [0, 3],
        "before": 7,
        "dry_run": True,
    }
    assert _validated(filled, RECOVERY_PARAMS) == filled


@pytest.mark.parametrize(
    "conf",
    [
        {"partitions": [-1]},
        {"partitions": 3},
        {"jobs": "a"},
        {"before": 0},
        {"workspace": "Shop"},
        {"dataset": ""},
    ],
)
def test_an_invalid_value_of_the_rebuild_form_is_refused(conf: dict[str, Any]) -> None:
    with pytest.raises(ParamValidationError):
        _validated(conf, RECOVERY_PARAMS)


def test_every_form_field_has_a_title_and_a_description() -> None:
    for name, param in {**COMMIT_PARAMS, **RECOVERY_PARAMS, **DRILL_PARAMS}.items():
        assert param.schema.get("title"), name
        assert param.description, name
