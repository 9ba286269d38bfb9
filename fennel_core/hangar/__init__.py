"""Hangar: the batch key/value store that holds one job partition's state."""
