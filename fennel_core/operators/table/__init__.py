"""Every version of a keyed dataset, for lookups and as-of reads."""
