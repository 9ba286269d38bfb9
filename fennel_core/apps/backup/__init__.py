"""Backup and restore of an installation: database, keys, objects, and what Kafka alone holds.

Theory. Four stores make up an installation. Postgres says what exists; S3 has the history of topics
and the snapshots of states; Kafka has the records that neither covers yet; the key file opens the
secrets. They refer to each other by offset: a snapshot says "records from 4711 on are not applied",
history says "I have everything below 4700". So a backup is a *cut* through all of them, taken while
no server writes, and a restore gives every record the offset that it had (`offset_plan`). What
history and snapshots cover is not copied from Kafka: a restored topic begins where they end.

Local states of slots are not part of it: they are rebuilt from snapshots and replaylogs, as after
the loss of a disk.

- `manifest`: what a backup consists of; `storage`: where it is; `pieces`: its large files
- `database`, `kafka_records`, `objects`, `sealed_keys`: one module per store
- `take` and `restore`: the order of the steps, and what is refused
"""
