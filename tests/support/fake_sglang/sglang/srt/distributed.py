"""Which rank this process is."""

import os


def get_tensor_model_parallel_rank() -> int:
    return int(os.environ.get("FAKE_TP_RANK", "0"))
