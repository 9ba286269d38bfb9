"""The platform's Airflow integration: DAG settings, tasks and the plugin.

It contains no logic of its own; `fennel_core` runs the same steps without Airflow.
"""

preloaded_sources_ns: int | None = None
"""Modification time of the newest source file that the scheduler preloaded for its tasks, None in
other processes. It is stored here because Airflow executes `plugin.py` twice, once for its own
listeners and once for those of tasks, and the two copies share no state.
"""
