"""What `--target T` means: from an alias, a folder or a hub id to a folder. No torch, and no weight is read.

- `resolve`: `resolve_target`, `resolve_target_headers`, and a fingerprint of weight files;
- `built_in`: the target that eyas fetches itself; `hub_snapshot`: models of the Hugging Face hub.
"""

from eyas.models.target_folder.resolve import (
    TargetIncomplete,
    TargetUnknown,
    fingerprint_weights,
    resolve_target,
    resolve_target_headers,
)

__all__ = ["TargetIncomplete", "TargetUnknown", "fingerprint_weights", "resolve_target", "resolve_target_headers"]
