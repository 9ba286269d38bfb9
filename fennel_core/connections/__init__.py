"""Clients of the systems that the platform uses: Postgres, Kafka, S3 and slots."""
