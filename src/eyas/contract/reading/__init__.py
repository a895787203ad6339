"""A checkpoint read as a draft, and what is wrong with it whatever the engine."""
