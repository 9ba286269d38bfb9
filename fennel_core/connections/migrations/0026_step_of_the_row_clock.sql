-- When the clock that ages the rows of a workspace was last moved: it moves by a bounded step per day, however many runs there are.
ALTER TABLE workspace ADD COLUMN aged_at timestamptz NOT NULL DEFAULT now();
