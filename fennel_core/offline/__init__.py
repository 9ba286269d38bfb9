"""Features as of a time per row, computed from history in batches: the core of training data."""
