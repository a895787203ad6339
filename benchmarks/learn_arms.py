"""The arms of `learn_h200.py`: one change each to the plain defaults, in the order of their likely worth."""

from typing import Any

Changes = dict[str, Any]

# Today's defaults, written out: a later default must not move them.
PLAIN: Changes = {
    "optimiser": "adamw", "schedule": "cosine", "final_lr_share": 0.1, "warmup_share": 0.05, "average_share": 0.0,
    "loss": "kl", "step_decay": 0.8, "ttt_steps": 7, "grad_clip": 0.5, "lr_factor": 1.0, "batch_factor": 1.0,
}  # fmt: skip

# group -> name -> changes. The winner of a group is one arm; winners of several groups are tried together.
# lr_factor and batch_factor multiply what the plain rules give at the arm's budget.
GROUPS: dict[str, dict[str, Changes]] = {
    "optimiser": {
        "muon lr x1": {"optimiser": "muon"},
        "muon lr x2": {"optimiser": "muon", "lr_factor": 2.0},
        "muon lr x4": {"optimiser": "muon", "lr_factor": 4.0},
        "adamw lr x2": {"lr_factor": 2.0},
        "adamw lr x4": {"lr_factor": 4.0},
        "muon lr x2, batch /2": {"optimiser": "muon", "lr_factor": 2.0, "batch_factor": 0.5},
        "adamw lr x2, batch /2": {"lr_factor": 2.0, "batch_factor": 0.5},
        "muon lr x4, batch /2": {"optimiser": "muon", "lr_factor": 4.0, "batch_factor": 0.5},
        "muon lr x8": {"optimiser": "muon", "lr_factor": 8.0},
        "adamw lr x8": {"lr_factor": 8.0},
        "muon lr x2, batch /4": {"optimiser": "muon", "lr_factor": 2.0, "batch_factor": 0.25},
        "adamw batch /2": {"batch_factor": 0.5},
        "adamw batch x2": {"batch_factor": 2.0},
        "muon lr x16": {"optimiser": "muon", "lr_factor": 16.0},
    },
    "schedule": {
        "cosine to 0": {"final_lr_share": 0.0},
        "linear to 0": {"schedule": "linear", "final_lr_share": 0.0},
        "wsd to 0": {"schedule": "wsd", "final_lr_share": 0.0},
        "wsd to 0, decay 0.5": {"schedule": "wsd", "final_lr_share": 0.0, "decay_share": 0.5},
        "warm-up 0.01": {"warmup_share": 0.01},
        "warm-up 0.15": {"warmup_share": 0.15},
    },
    "average": {"average 0.05": {"average_share": 0.05}, "average 0.15": {"average_share": 0.15}},
    "start": {
        "start from layer 27": {"init_layer": 27},
        "start from layer 29": {"init_layer": 29},
        "start from layer 15": {"init_layer": 15},
    },
    "norms": {
        "norm of each state": {"aux_norm": "per-state"},
        "EAGLE 3.1": {"aux_norm": "per-state", "feedback": "post-norm"},
        "one norm of all states": {"aux_norm": "over-concat"},
    },
    "loss": {
        "temperature 0.5": {"teacher_temperature": 0.5},
        "lk": {"loss": "lk"},
        "ce": {"loss": "ce"},
        "jeffreys": {"loss": "jeffreys"},
        "temperature 0.7": {"teacher_temperature": 0.7},
        "tv": {"loss": "tv"},
    },
    "unrolling": {
        "decay 0.6": {"step_decay": 0.6},
        "decay 1.0": {"step_decay": 1.0},
        "5 steps": {"ttt_steps": 5},
        "4 steps": {"ttt_steps": 4},
        "3 steps, decay 0.6": {"ttt_steps": 3, "step_decay": 0.6},
    },
    "clip": {"clip 1": {"grad_clip": 1.0}, "clip 5": {"grad_clip": 5.0}},
    "boundaries": {
        "boundaries 1 15 29": {"aux_boundaries": (1, 15, 29)},
        "boundaries 10 20 29": {"aux_boundaries": (10, 20, 29)},
        "boundaries 15 25 30": {"aux_boundaries": (15, 25, 30)},
        "boundaries 2 20 28": {"aux_boundaries": (2, 20, 28)},
    },
    "vocabulary": {
        "vocabulary 16384": {"draft_vocab_size": 16384},
        "vocabulary 4096": {"draft_vocab_size": 4096},
        "vocabulary full": {"draft_vocab_size": "full"},
    },
    "ramp": {"ramp from 1/4": {"batch_ramp": 0.25}},
    "feedback": {
        "feedback dropped 0.1": {"feedback_dropout": 0.1},
        "feedback dropped 0.02": {"feedback_dropout": 0.02},
    },
    "head": {"head frozen": {"freeze_head": True}},
    "decay of weights": {"weight decay 0.1": {"weight_decay": 0.1}},
}
# Other rows, the plain options: how the budget is spent, not how it is learned from.
ROWS_ARMS: dict[str, str] = {"4 passes over a quarter": "quarter", "with long prompts": "mixed"}
# A change of the draft's size, or one that older engines do not read, is measured and not taken for the shipped draft.
NOT_SHIPPED = ("vocabulary", "norms", "boundaries")
SHAPE = ("aux_norm", "feedback")


def single_arms() -> dict[str, Changes]:
    """Name -> changes of every arm with one, the most promising of each group first."""
    lists = [list(group.items()) for group in GROUPS.values()]
    longest = max(map(len, lists))
    return {found[0]: found[1] for i in range(longest) for arms in lists if i < len(arms) for found in [arms[i]]}


def combined(names: list[str]) -> Changes:
    """The changes of several arms together; of two that touch one option, the later one counts."""
    arms = single_arms()
    return {key: value for name in names for key, value in arms[name].items()}


def group_of(name: str) -> str:
    """The group that holds this arm."""
    return next(group for group, arms in GROUPS.items() if name in arms)
