"""Expectations: what rows of a dataset should be like, read from a commit, applied to batches."""
