"""Dedup: the last row per group of duplicates."""
