"""Drills: check that a job partition could be rebuilt and would be the same."""
