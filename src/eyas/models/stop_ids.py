"""The ids at which a target ends its text, as its folder states them."""

from pathlib import Path

from eyas.contract.files.json_file import read_json_object


def stop_ids_of(folder: Path) -> frozenset[int]:
    """End-of-text ids from generation_config.json, else from config.json; empty when neither names one."""
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        stated = read_json_object(path).get("eos_token_id") if path.exists() else None
        ids = [i for i in (stated if isinstance(stated, list) else [stated]) if type(i) is int]
        if ids:
            return frozenset(ids)
    return frozenset()
