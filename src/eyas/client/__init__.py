"""HTTP to any OpenAI-compatible server; SGLang's and vLLM's own counters, by version, into the one definition."""
