"""A keyed dataset as signed facts."""
