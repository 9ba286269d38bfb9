"""Hangar: the state store, which holds one job partition's state."""
