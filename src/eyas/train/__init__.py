"""EAGLE-3 training with training-time test: rows of one target in, a draft out.

Rooms, each of which imports only those before it: `rows` (what is trained on), `step` (the arithmetic of one packed
micro-batch), `optimise` (an optimiser step on one or several ranks), `preflight` (what is known before the first step),
`run` (from the first step to the written draft). `config.TrainConfig` and `request.TrainRequest` say what is wanted;
`preflight.examine.plan_train` plans it and `run.train.train` does it.
"""
