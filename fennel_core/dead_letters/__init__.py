"""Dead letters, counted from the topics that hold them."""
