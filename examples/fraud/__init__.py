"""A fraud-detection project, written as a user of the public client writes it."""
