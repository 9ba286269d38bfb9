"""Operators: what each kind of job computes, as pure steps over state."""
