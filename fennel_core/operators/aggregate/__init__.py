"""Grouped aggregation over windows that move with the reader, assembled from tiles."""
