"""The contract between a draft, its target and a serving engine: files, formats, load rules, conversion.

Rooms, each importing only those after it: check, convert, engines, reading, dialects, spec, files.
"""
