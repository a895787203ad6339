"""Does a server accept what the draft's replay says? Its own token ids, replayed, beside its own counts.

`run_parity` is the stage; `compared` holds two counts against each other, `faults` names what else would explain them.
"""
