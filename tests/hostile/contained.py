"""The executors as in a container whose kernel has no Landlock: the other layers alone."""

from __future__ import annotations

import os
from dataclasses import replace

from fennel_core.executors import host
from fennel_core.executors.template import confined_by

if __name__ == "__main__":
    host.clean_environment("tests.hostile.contained")
    plan = replace(host.plan_of_this_machine(), landlock_abi=0)
    settings = host.HostSettings.read(dict(os.environ))
    host.run(settings, confined_by(plan), plan.layers, plan.users)
