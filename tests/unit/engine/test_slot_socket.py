"""A slot removes its own socket's path at its end, and never that of its successor."""

from pathlib import Path

from fennel_core.connections import frames
from fennel_core.engine.slot import _inode, _unlink_own


async def _refuse(op: str, argument: object) -> object:
    raise NotImplementedError


async def test_a_slot_that_ends_late_keeps_the_socket_of_its_successor(tmp_path: Path) -> None:
    path = tmp_path / "engine-0.sock"
    old = await frames.serve(str(path), _refuse)
    bound = _inode(path)
    path.unlink()
    new = await frames.serve(str(path), _refuse)
    old.close()
    _unlink_own(path, bound)
    assert path.exists(), "its successor would be unreachable"
    _unlink_own(path, _inode(path))
    assert not path.exists()
    _unlink_own(path, None)
    new.close()
