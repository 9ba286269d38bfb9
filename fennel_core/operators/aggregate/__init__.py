"""Grouped aggregation: results assembled from tiles, at read time or at every change point."""
