"""Connectors that a workspace stores by name, for `Kafka.get(name)` and its like in definitions."""
