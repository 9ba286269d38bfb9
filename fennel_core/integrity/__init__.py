"""Recompute samples of what lookups return from history, naively, and compare."""
