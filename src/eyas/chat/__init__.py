"""Talking to a target through eyas' own engine, with or without a draft: `open_chat` gives a `ChatSession`."""
