"""Clients of the systems we stand on: Postgres, Kafka, S3, slots and executors; one place that
knows how to reach each.
"""
