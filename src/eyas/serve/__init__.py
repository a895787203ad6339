"""Start SGLang or vLLM with a draft, and always know what it is doing."""
