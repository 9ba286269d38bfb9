"""groupby(…, window=…): one row per key and window."""
