"""The log on Kafka (librdkafka): `broker` is the entry, one module per kind of client."""
