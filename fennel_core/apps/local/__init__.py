"""The whole platform on one machine: Postgres, Kafka, S3, Airflow and the fennel-core servers.

A service is one row of a table (`services.py`): command, environment, ports, readiness check and
dependencies. `launch_plan.py` decides without I/O which services to start, keep or restart;
`launcher.py` and `platform.py` carry the decision out. Each service leads its own session, so that
every process it starts can be found and stopped. Its pid file also records the start time, so that
a recycled pid is never mistaken for the service.
"""
