"""Scheduling of job partitions on slots: placement and leases, as pure functions."""
