"""How many rows of each dataset are as its expectations say, counted from its topic."""
