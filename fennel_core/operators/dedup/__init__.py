"""dedup: the last row per duplicate group, window or session."""
