"""Does a server accept as many drafts as replay predicts? Its token ids, replayed, beside its counts.

`run_parity` is the stage; `compared` holds two counts against each other, `faults` names what else would explain them.
"""
