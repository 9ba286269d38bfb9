"""Operators: the algebra of each and the pure step that runs it."""
