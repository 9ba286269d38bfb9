"""groupby(…).first() and .latest()."""
