"""Sinks: write every change of a dataset to a place outside of the platform, exactly once."""
