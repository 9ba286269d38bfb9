"""A fraud-detection project, written with the public client only."""
