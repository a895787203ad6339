"""From conversations to tokenised rows with an exact assistant-only loss mask."""
