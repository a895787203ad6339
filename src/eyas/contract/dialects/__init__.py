"""One module per format that drafts are written in: how it is recognised, read and written.

`registry.detect(checkpoint)` names the format of a checkpoint; `registry.dialect_named(name)` gives it by name.
"""
