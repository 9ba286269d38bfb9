"""Dead letters afterwards: list and show them, replay those that can be typed, drop the others."""
