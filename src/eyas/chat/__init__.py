"""Talking to a target through our own engine, with or without a draft."""
