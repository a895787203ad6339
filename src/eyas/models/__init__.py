"""The draft as a torch module, and target adapters over `transformers` (embedding, head, aux capture)."""
