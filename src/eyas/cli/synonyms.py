"""Names that other programs give to the options of eyas: near in meaning, not in spelling."""

import cyclopts

# Name in other trainers, engines and benchmarks -> names in eyas; the first one that the command has is meant.
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


def our_name(error: cyclopts.UnknownOptionError) -> str | None:
    """The command's own name of the unknown option; None if the command has no such option."""
    given = (error.token.keyword or error.token.value).split("=", 1)[0].lower().replace("_", "-")
    known = {name for argument in error.argument_collection if argument.parse for name in argument.names}
    return next((ours for ours in _OURS.get(given, ()) if ours in known), None)
