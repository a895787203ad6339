"""From data files to a folder of rows: weights, exclusions, one row a conversation, what is held out, the arrays."""
