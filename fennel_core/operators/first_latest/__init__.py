"""The first or the latest row of each key: `groupby(...).first()` and `.latest()`."""
