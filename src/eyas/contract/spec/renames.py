"""Other names for a draft's tensors before it is read: what `--rename` says, and a prefix that all of them carry."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from eyas.contract.spec.tensor_names import canonical_names
from eyas.errors import EyasError


class RenameInvalid(EyasError):
    """A `--rename` that is not OLD=NEW, matches no tensor, or gives two tensors one name."""

    code = "rename-invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rename:
    """One tensor, or with `is_prefix` all whose names begin with `old`."""

    old: str
    new: str
    is_prefix: bool = False

    def __str__(self) -> str:
        star = "*" if self.is_prefix else ""
        return f"{self.old}{star}={self.new}{star}"


def parse_rename(text: str) -> Rename:
    """`OLD=NEW`, or `OLD_PREFIX*=NEW_PREFIX*` (a prefix may be empty).

    Raises:
        RenameInvalid: neither.
    """
    old, _, new = text.partition("=")
    is_prefix = old.endswith("*") and new.endswith("*")
    rename = Rename(old=old.removesuffix("*"), new=new.removesuffix("*"), is_prefix=is_prefix)
    if str(rename) != text or "*" in rename.old + rename.new or (not is_prefix and not (old and new)):
        raise RenameInvalid(
            f"--rename {text} is not OLD=NEW",
            "--rename",
            "it must be OLD=NEW, or OLD_PREFIX*=NEW_PREFIX* for all tensors whose names begin so",
            "for example --rename 'blk0_*=midlayer.*' (quoted: the shell has its own use for a star)",
        )
    return rename


def renamed(names: Iterable[str], renames: Sequence[Rename]) -> dict[str, str]:
    """Stored name -> name to read it under; the first rename that fits a name counts.

    Raises:
        RenameInvalid: one matches no tensor, or two tensors would have the same name.
    """
    found: dict[str, str] = {}
    used: set[Rename] = set()
    for name in names:
        rename = next((r for r in renames if (name.startswith(r.old) if r.is_prefix else name == r.old)), None)
        found[name] = name if rename is None else rename.new + name[len(rename.old) :]
        used |= {rename} if rename else set()
    if idle := [r for r in renames if r not in used]:
        raise RenameInvalid(
            f"--rename {idle[0]} matches no tensor",
            "--rename",
            f"there is no {idle[0].old}{'...' if idle[0].is_prefix else ''} that an earlier --rename has left",
            "eyas header lists the names",
        )
    sources: dict[str, str] = {}
    for stored, name in found.items():
        if name in sources:
            raise RenameInvalid(
                f"{sources[name]} and {stored} would both be {name}",
                "--rename",
                "one would replace the other",
                "give each its own name",
            )
        sources[name] = stored
    return found


def shared_prefix(names: Sequence[str]) -> str:
    """The prefix (with its dot) that all `names` carry and without which most of them are a draft's; "" = none."""
    if not names or any(_known(names)):
        return ""
    columns = zip(*(name.split(".")[:-1] for name in names), strict=False)
    parts = [column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns)]
    prefixes = [".".join(parts[:i]) + "." for i in range(1, len(parts) + 1)]
    counts: Mapping[str, int] = {p: sum(_known([name.removeprefix(p) for name in names])) for p in prefixes}
    best = max(counts, key=lambda p: counts[p], default="")  # the shortest of equals
    return best if best and 2 * counts[best] > len(names) else ""


def _known(names: Sequence[str]) -> list[bool]:
    return [canonical is not None for canonical in canonical_names(dict.fromkeys(names)).values()]
