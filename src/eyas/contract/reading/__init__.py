"""A checkpoint understood as a draft, and everything that is wrong with it whatever the engine.

`read_draft.read_draft(checkpoint)` gives a `DraftReading`; `draft_findings.draft_findings(reading)` judges it;
`open_draft.open_draft(path)` does both for commands that run the draft.
"""
