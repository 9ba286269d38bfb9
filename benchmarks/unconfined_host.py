"""The executors without their sandbox, for `benchmarks/sandbox.py` only: what confining costs."""

from __future__ import annotations

import os

from fennel_core.executors import host

if __name__ == "__main__":
    host.run(host.HostSettings.read(dict(os.environ)), lambda _user, _parent: None, (), None)
