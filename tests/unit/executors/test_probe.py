"""Which layers are required, and what is said about those that a machine lacks."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fennel_core.executors.environment import INHERITED, allowed
from fennel_core.executors.internal_errors import SandboxUnavailable
from fennel_core.executors.sandbox import landlock, probe
from fennel_core.executors.sandbox.probe import confinement_plan

NEWEST = 7


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that makes this machine one with the given layers."""

    def have(*, seccomp: bool = True, abi: int = NEWEST, container: bool = False) -> None:
        monkeypatch.setattr(probe, "_in_child", lambda works: works())
        monkeypatch.setattr(probe, "_filter_works", lambda architecture: seccomp)
        monkeypatch.setattr(probe, "_landlock_works", lambda version, readable: True)
        monkeypatch.setattr(probe, "_usable", lambda users, needed: False)
        monkeypatch.setattr(landlock, "abi_version", lambda: abi)
        monkeypatch.setattr(probe, "in_container", lambda: container)

    return have


def test_without_seccomp_nothing_starts(machine: Callable[..., None]) -> None:
    machine(seccomp=False, container=True)
    with pytest.raises(SandboxUnavailable, match="refuses seccomp filters"):
        confinement_plan((), ())


def test_without_landlock_the_executors_start_in_a_container_only(
    machine: Callable[..., None],
) -> None:
    machine(abi=0)
    with pytest.raises(SandboxUnavailable, match="no Landlock"):
        confinement_plan((), ())
    machine(abi=0, container=True)
    plan = confinement_plan((), ())
    assert plan.landlock_abi == 0
    assert "landlock: NOT ACTIVE, the kernel has no Landlock; the container's" in plan.report


@pytest.mark.parametrize(
    ("abi", "active"),
    [(1, ()), (4, ("landlock-network",)), (7, ("landlock-network", "landlock-scopes"))],
)
def test_the_layers_of_an_older_kernel_are_reported(
    machine: Callable[..., None], abi: int, active: tuple[str, ...]
) -> None:
    machine(abi=abi)
    layers = {each.name: each.active for each in confinement_plan((), ()).layers}
    for name in ("landlock-network", "landlock-scopes"):
        assert layers[name] == (name in active)
    assert layers["seccomp"]
    assert layers["landlock"]
    assert not layers["own-user"]


def test_an_unknown_architecture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    name = os.uname_result(("Linux", "here", "6", "1", "riscv64"))
    monkeypatch.setattr(os, "uname", lambda: name)
    with pytest.raises(SandboxUnavailable, match="riscv64"):
        confinement_plan((), ())


def test_the_layers_of_this_machine_are_tried_in_children() -> None:
    plan = confinement_plan((Path(os.__file__).parent,), ())
    assert next(each.name for each in plan.layers if each.active) == "seccomp"
    assert os.listdir("/"), "this process is not confined"


def test_only_listed_variables_are_passed_on() -> None:
    given = dict.fromkeys(INHERITED, "x") | {"AWS_SECRET_ACCESS_KEY": "x", "PGPASSWORD": "x"}
    kept = allowed(given | {"FENNEL_ADMIN_TOKEN": "x", "OMP_NUM_THREADS": "8"})
    assert set(INHERITED) < set(kept)
    assert not {"AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "FENNEL_ADMIN_TOKEN"} & set(kept)
    assert (kept["OMP_NUM_THREADS"], kept["HOME"]) == ("1", "/nonexistent")


def test_hosts_of_one_machine_share_no_users() -> None:
    # Far from the users of the executors that may be running here.
    unused = probe.Users(2_000_000_000, 2 * probe.USERS_OF_ONE_HOST)
    first, second = probe.claim(unused), probe.claim(unused)
    assert first == probe.Users(2_000_000_000, probe.USERS_OF_ONE_HOST)
    assert second == probe.Users(2_000_000_000 + probe.USERS_OF_ONE_HOST, probe.USERS_OF_ONE_HOST)
    assert probe.claim(unused) is None, "none is left, as long as this process lives"
