"""Who runs what: ownership of job partitions and the rules of leases. Pure."""
