"""Everything that can be said about a draft before any engine is started.

`check.check(draft, target, engines)` gives a `CheckReport`: findings, a ledger per engine, launch flags.
"""
