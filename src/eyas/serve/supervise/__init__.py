"""From evidence to a state, again and again: what the server is doing, since when, and what comes next."""
