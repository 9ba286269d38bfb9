"""Values that all packages share: ids, time, data types, schemas, positions and keys. No I/O."""
