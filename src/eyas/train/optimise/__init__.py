"""An optimiser step on one or several ranks: `trainer.Trainer` computes it, `optimiser.GuardedOptimiser` applies it."""
