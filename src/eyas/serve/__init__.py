"""Start a serving engine with a draft, and always know what it is doing.

Rooms, each importing only those before it: facts, log, look, supervise, verdict, launch; then `watch` and `compare`.
"""
