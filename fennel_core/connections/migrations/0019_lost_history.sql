-- Offsets whose records Kafka deleted before history had them: the files of the partition leave them out.
ALTER TABLE history_partition ADD COLUMN lost_offsets bigint NOT NULL DEFAULT 0;
