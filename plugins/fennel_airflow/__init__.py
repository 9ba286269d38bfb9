"""Airflow's side of the platform: DAG settings, tasks and the plugin. No logic lives here; `fennel_core` runs the same without it."""
