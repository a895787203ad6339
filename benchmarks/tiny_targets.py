"""Tiny random targets that SGLang and vLLM serve, spelled as the published ones: DeepSeek-V3, Kimi-K2.5 (INT4).

    python benchmarks/tiny_targets.py FOLDER

writes FOLDER/deepseek-v3, FOLDER/kimi-k2.5 and FOLDER/kimi-k2.5-bf16, its twin with the same numbers in bfloat16, for
comparisons with transformers. About 25 MB in all, seconds on a CPU; no GPU is needed.

Serving kimi-k2.5 with SGLang needs `--trust-remote-code`: a processor that reads no images stands in for Kimi's own.
With two heads, one or two tensor-parallel ranks can serve them; ids are below 512, those of text below 259.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from published_targets import save_deepseek_v3, save_kimi_k25


def main(folder: Path) -> None:
    """Write all of them, and their sizes to stdout."""
    save_deepseek_v3(folder / "deepseek-v3")
    save_kimi_k25(folder / "kimi-k2.5", servable=True)
    save_kimi_k25(folder / "kimi-k2.5-bf16", packed=False)
    for path in sorted(folder.glob("*/model.safetensors")):
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
