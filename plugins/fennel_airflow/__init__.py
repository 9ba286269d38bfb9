"""Airflow's side of the platform: DAG settings, tasks and the plugin. No logic lives here;
`fennel_core` runs the same without it.
"""

as_of_ns: int | None = None
"""In the scheduler and what it forks: how new the sources were that it has imported for its tasks.
It is kept here because Airflow runs `plugin.py` twice, once for its own listeners and once for
those of tasks, and the two copies know nothing of each other.
"""
