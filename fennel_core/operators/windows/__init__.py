"""Windows as keys: `groupby(..., window=W)`."""
