"""The ingest server: validate logged rows, assign positions, and write them once to Kafka."""
