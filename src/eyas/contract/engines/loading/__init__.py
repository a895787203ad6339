"""What an engine does with a draft when it loads it: the machinery that applies the load rules of every engine."""
