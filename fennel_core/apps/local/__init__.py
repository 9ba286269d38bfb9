"""The whole platform on one machine: real Postgres, Kafka, S3, Airflow and our own servers, started
and stopped together.

Theory. A part is a row of a table (`parts.py`): command, environment, port, health check, what it
needs. What to do is decided from facts (`decide.py`) without touching the world; `launch.py` and
`stop.py` carry it out. A part lives in a session of its own, so that everything it starts can be
found and stopped, and its pid file holds its start time, so that a recycled pid is never mistaken
for it.
"""
