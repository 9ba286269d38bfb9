"""Turn logged JSON into typed rows of a source dataset: at ingest, and when rows are replayed."""
