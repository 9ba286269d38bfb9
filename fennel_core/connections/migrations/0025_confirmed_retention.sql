-- A commit that confirms retention in an older workspace takes effect after the grace period, in which the author can still change `history`.
ALTER TABLE workspace ADD COLUMN old_rows_held_until timestamptz;
