"""A keyed dataset as rows with validity intervals."""
