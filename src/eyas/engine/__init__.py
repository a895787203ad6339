"""The reference engine: exact, readable, and fast for one stream. Start reading at `round.py`."""
