"""Names that other programs give to our options: nearer in meaning than in spelling."""

from collections.abc import Iterator

import cyclopts

# What other trainers, engines and benchmarks call it -> ours, the first of them that the command has.
_OURS = {
    "--learning-rate": ("--lr",),
    "--batch-size": ("--batch-tokens", "--batch"),
    "--per-device-train-batch-size": ("--micro-batch-tokens",),
    "--max-steps": ("--steps",),
    "--num-steps": ("--steps",),
    "--num-train-epochs": ("--epochs",),
    "--num-epochs": ("--epochs",),
    "--max-grad-norm": ("--grad-clip",),
    "--warmup-ratio": ("--warmup-share",),
    "--lr-scheduler-type": ("--schedule",),
    "--save-steps": ("--checkpoint-every-s",),
    "--eval-steps": ("--eval-every",),
    "--logging-steps": ("--log-every",),
    "--ttt-length": ("--ttt-steps",),
    "--model": ("--target",),
    "--model-path": ("--target",),
    "--target-model-path": ("--target",),
    "--base-model": ("--target",),
    "--draft-model": ("--draft",),
    "--output": ("--out",),
    "--output-dir": ("--out",),
    "--dataset": ("--data",),
    "--train-data-path": ("--data",),
    "--eval-data": ("--held-out", "--data"),
    "--eval-data-path": ("--held-out", "--data"),
    "--max-tokens": ("--max-new-tokens",),
    "--num-speculative-tokens": ("--num-draft-tokens",),
    "--speculative-num-steps": ("--num-draft-tokens",),
    "--max-samples": ("--max-rows",),
    "--num-gpus": ("--gpus",),
    "--fsdp": ("--shard",),
}


def meant(error: cyclopts.UnknownOptionError) -> str | None:
    """The command's own name of the option that it does not know; None where nothing is known by that name."""
    given = (error.token.keyword or error.token.value).split("=", 1)[0]
    known = set(_names(error))
    return next((ours for ours in _OURS.get(given.lower().replace("_", "-"), ()) if ours in known), None)


def _names(error: cyclopts.UnknownOptionError) -> Iterator[str]:
    for argument in error.argument_collection:
        if argument.parse:
            yield from argument.names
