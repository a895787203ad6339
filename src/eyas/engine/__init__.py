"""Eyas' own engine: exact, and fast for one stream. `open_engine` gives an `Engine`; start reading at `round.py`."""
