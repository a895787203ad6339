"""Everything that can be said about a draft before any engine is started."""
