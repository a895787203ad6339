"""Whether a folder of rows was made for a target: by its tokenizer and its chat template."""

from eyas.contract.spec.target_spec import TargetSpec
from eyas.data.rows.row_store import Rows
from eyas.errors import EyasError


class RowsOfAnotherTarget(EyasError):
    """The rows were made with another tokenizer or chat template than the target's."""

    code = "rows-of-another-target"


def require_same_text(target: TargetSpec, rows: Rows) -> None:
    """Raise `RowsOfAnotherTarget` where tokenizer or template differ."""
    manifest = rows.manifest
    pairs = [
        ("tokenizer", manifest.tokenizer, target.tokenizer_hash or "unknown"),
        ("chat template", manifest.template, target.template_hash or "unknown"),
    ]
    different = [f"{name}: rows {ours}, target {theirs}" for name, ours, theirs in pairs if ours != theirs]
    if different:
        raise RowsOfAnotherTarget(
            f"the rows were not made for this target: {' and '.join(d.split(':')[0] for d in different)} differ",
            str(rows.folder),
            "; ".join(different),
            "run `eyas prepare` again with this target",
        )
