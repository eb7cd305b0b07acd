"""From what a user writes to a request: names looked up, shorthands written out, models read."""
