"""Mutated headers, indexes, configs, pickles, dumps: nothing but EyasError, bounded memory, nothing opened outside."""

import copy
import json
import random
import resource
import sys
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drafts import (
    DraftBuild,
    flat_config,
    modelopt_config,
    safetensors_bytes,
    speculators_config,
    target_config,
    tensors,
)
from eyas.contract.convert.conversion_plan import plan_conversion
from eyas.contract.dialects.registry import DIALECTS
from eyas.contract.files.header_dump import dump_document
from eyas.contract.files.read_checkpoint import read_checkpoint
from eyas.contract.reading.draft_findings import draft_findings
from eyas.contract.reading.read_draft import read_draft
from eyas.contract.spec.target_spec import target_spec
from eyas.errors import EyasError
from pickle_bytes import state_dict, tensor

HOSTILE: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 1 << 31, 1 << 62, 1 << 200, -(1 << 70), 0.5, -0.0, 1e308, float("inf"),
    float("nan"), "", "x", "\0", "\x1b[31m", "../canary.safetensors", "/etc/passwd", "..", "a" * 5000, "ü", [],
    [0], [1, 2, 3], [-1], [None], [[]], [1 << 62] * 3, {}, {"a": 1}, {"": None}, "llama", "BF16", "I64", "F4",
    ["Eagle3LlamaForCausalLM"],
]  # fmt: skip
opened: list[str] = []
is_watching = [False]


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if is_watching[0] and event == "open":
        opened.append(str(arguments[0]))


sys.addaudithook(_watch)


def mutate_json(value: Any, rng: random.Random) -> Any:
    """`value` with one to three random nodes replaced, removed, renamed or doubled."""
    value = copy.deepcopy(value)
    for _ in range(rng.randint(1, 3)):
        nodes = _nodes(value)
        if not nodes:
            return rng.choice(HOSTILE)
        parent, key = rng.choice(nodes)
        action = rng.random()
        if action < 0.6:
            parent[key] = copy.deepcopy(rng.choice(HOSTILE))
        elif action < 0.75:
            del parent[key]
        elif action < 0.9 and isinstance(parent, dict):
            parent[str(rng.choice(HOSTILE))[:50]] = parent.pop(key)
        else:
            other, name = rng.choice(nodes)
            if name in other if isinstance(other, dict) else name < len(other):
                parent[key] = copy.deepcopy(other[name])
    return value


def _nodes(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found.append((value, key))
        found += _nodes(item)
    return found


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """`data` with bits flipped, cut, doubled, or a number overwritten with a huge one."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(max(1, len(changed)))
        action = rng.random()
        if action < 0.4 and changed:
            changed[at] ^= 1 << rng.randrange(8)
        elif action < 0.55:
            del changed[at : at + rng.randint(1, 64)]
        elif action < 0.7:
            changed[at:at] = rng.randbytes(rng.randint(1, 16))
        elif action < 0.85:
            changed[at : at + 8] = rng.choice([1 << 60, (1 << 64) - 1, 0, 1 << 31, 1 << 40]).to_bytes(8, "little")
        else:
            changed = changed[: rng.randrange(len(changed) + 1)]
    return bytes(changed)


BUILD = DraftBuild(layers=2, norm_before_fc=True)
WEIGHTS = safetensors_bytes(tensors(BUILD))
HEADER = json.loads(WEIGHTS[8 : 8 + int.from_bytes(WEIGHTS[:8], "little")])
CONFIGS = [
    flat_config(BUILD),
    flat_config(DraftBuild(mla=True, fc_norm=True)),
    speculators_config(BUILD, norm_before_fc=True),
    modelopt_config(BUILD),
    {
        **flat_config(BUILD), "sliding_window": 8, "layer_types": ["full_attention"],
        "rope_parameters": {"rope_theta": 1.0},
    },
    {
        "model_type": "x", "text_config": target_config(),
        "quantization_config": {"quant_method": "fp8", "ignore": ["lm_head"]},
    },
]  # fmt: skip


def safetensors_header(folder: Path, rng: random.Random) -> None:
    (folder / "config.json").write_text(json.dumps(rng.choice(CONFIGS)))
    text = json.dumps(mutate_json(HEADER, rng)).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + WEIGHTS[-4000:])


def safetensors_bits(folder: Path, rng: random.Random) -> None:
    (folder / "config.json").write_text(json.dumps(rng.choice(CONFIGS)))
    head = mutate_bytes(WEIGHTS[:600], rng)
    (folder / "model.safetensors").write_bytes(head + WEIGHTS[600:])


def config(folder: Path, rng: random.Random) -> None:
    document = mutate_json(rng.choice(CONFIGS), rng)
    text = json.dumps(document)
    (folder / "config.json").write_bytes(mutate_bytes(text.encode(), rng) if rng.random() < 0.1 else text.encode())
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    if rng.random() < 0.3:
        sidecar = {"dialect": "vllm", "contract": {"aux_boundaries": [1, 2, 3]}, "copied_from_target": [], "target": {}}
        (folder / "eyas.json").write_text(json.dumps(mutate_json(sidecar, rng)))


def index(folder: Path, rng: random.Random) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIGS[0]))
    (folder / "model-1.safetensors").write_bytes(WEIGHTS)
    weight_map = dict.fromkeys(tensors(BUILD), "model-1.safetensors")
    for name in rng.sample(sorted(weight_map), rng.randint(1, 3)):
        weight_map[name] = rng.choice(
            ["../canary.safetensors", str(folder.parent / "canary.safetensors"), "sub/../../canary.safetensors", "link"]
        )
    if rng.random() < 0.2:
        (folder / "link").symlink_to("../canary.safetensors")
    document = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(mutate_json(document, rng)))


def pickled(folder: Path, rng: random.Random) -> None:
    data = state_dict(("midlayer.x.weight", tensor()), ("fc.weight", tensor()), ("d2t", tensor()))
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as archive:
        archive.writestr("a/data.pkl", mutate_bytes(data, rng) if rng.random() < 0.7 else data)
        archive.writestr("a/data/0", b"\0" * 24)
    if rng.random() < 0.4:
        path = folder / "pytorch_model.bin"
        path.write_bytes(mutate_bytes(path.read_bytes(), rng))
    (folder / "config.json").write_text(json.dumps(CONFIGS[0]))


DUMP: list[dict[str, Any]] = []


def dump(folder: Path, rng: random.Random) -> None:
    if not DUMP:
        (folder / "config.json").write_text(json.dumps(CONFIGS[0]))
        (folder / "model.safetensors").write_bytes(WEIGHTS)
        DUMP.append(dump_document(read_checkpoint(folder)))
        for file in folder.iterdir():
            file.unlink()
    (folder / "x.json").write_text(json.dumps(mutate_json(DUMP[0], rng)))


KINDS: list[Callable[[Path, random.Random], None]] = [
    safetensors_header,
    safetensors_bits,
    config,
    index,
    pickled,
    dump,
]


def understand(path: Path, rng: random.Random) -> None:
    """All that the contract does with headers."""
    checkpoint = read_checkpoint(path)
    dump_document(checkpoint)
    target = target_spec(checkpoint) if rng.random() < 0.1 else None
    reading = read_draft(checkpoint, target)
    findings = draft_findings(reading, target)
    for finding in findings:
        assert str(finding)
    codes = [finding.code for finding in findings]
    dialect = rng.choice([d for d in DIALECTS if d.write is not None])
    plan_conversion(reading, dialect, target, codes)


def fuzz(root: Path, cases: int, seed: int) -> Counter[str]:
    (root / "canary.safetensors").write_bytes(WEIGHTS)
    outcomes: Counter[str] = Counter()
    folder = root / "draft"
    folder.mkdir()
    for number in range(cases):
        rng = random.Random(seed * 1_000_003 + number)
        kind = KINDS[number % len(KINDS)]
        kind(folder, rng)
        path = folder / "x.json" if kind is dump else folder
        opened.clear()
        is_watching[0] = True
        try:
            understand(path, rng)
            outcomes["understood"] += 1
        except EyasError as error:
            outcomes[error.code] += 1
        except BaseException as error:
            raise AssertionError(f"case {number} of seed {seed} ({kind.__name__}): {error!r}") from error
        finally:
            is_watching[0] = False
        assert not [name for name in opened if "canary" in name or name.startswith("/etc")], f"case {number}"
        for file in folder.iterdir():
            file.unlink()
    return outcomes


def check(root: Path, cases: int, seed: int) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes = fuzz(root, cases, seed)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 100_000, f"{grown} kB"
    # the mutations reach into every part: many kinds of refusal, and some survive
    assert len(outcomes) > 20, outcomes
    assert outcomes["understood"] > cases // 200, outcomes
    assert outcomes["path-escape"] > cases // 40, outcomes


def test_three_thousand_mutations_give_nothing_but_eyas_errors(tmp_path: Path):
    check(tmp_path, 3000, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_mutations_give_nothing_but_eyas_errors(tmp_path: Path):
    check(tmp_path, 100_000, seed=2)


def test_the_fuzzer_would_notice_a_file_opened_outside(tmp_path: Path):
    (tmp_path / "canary.safetensors").write_bytes(WEIGHTS)
    opened.clear()
    is_watching[0] = True
    read_checkpoint(tmp_path / "canary.safetensors")
    is_watching[0] = False
    assert any("canary" in name for name in opened)
