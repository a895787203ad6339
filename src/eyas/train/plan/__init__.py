"""Everything about a run that is known or tried before its first step."""
