"""Everything eyas knows of vLLM."""
