"""The shape of a draft tree: how wide, how deep, how many nodes. No torch here: command lines are built from this."""

from dataclasses import dataclass

from eyas.errors import EyasError

MAX_WIDTH, MAX_DEPTH, MAX_NODES = 32, 32, 255


class TreeShapeInvalid(EyasError):
    """A tree's shape cannot be read, or no tree has it."""

    code = "tree-shape-invalid"


class TreeUnsupported(EyasError):
    """A target or a draft cannot read a tree in one pass."""

    code = "tree-unsupported"

    @classmethod
    def of(cls, what: str, why: str) -> "TreeUnsupported":
        """The error for a target or draft `what`."""
        return cls("trees cannot be drafted here", what, why, "draft a chain: give draft tokens instead of a tree")


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeShape:
    """A dynamic tree: at each depth the best nodes are expanded, and of all nodes the best are verified.

    Attributes:
        width: nodes expanded per depth, and children drafted for each of them (1 - 32); 1 gives a chain.
        depth: most drafts on a path (1 - 32).
        num_nodes: drafts verified in one pass, the root left out; at least `depth`, at most what can be drafted.
    """

    width: int
    depth: int
    num_nodes: int

    def __post_init__(self) -> None:
        wrong = []
        if not 1 <= self.width <= MAX_WIDTH:
            wrong.append(f"width is {self.width}, wanted 1 - {MAX_WIDTH}")
        if not 1 <= self.depth <= MAX_DEPTH:
            wrong.append(f"depth is {self.depth}, wanted 1 - {MAX_DEPTH}")
        if not wrong:
            most = min(MAX_NODES, self.num_drafted)
            if not self.depth <= self.num_nodes <= most:
                wrong.append(f"nodes is {self.num_nodes}, wanted {self.depth} (one per depth) - {most}")
        if wrong:
            raise TreeShapeInvalid(
                "no tree has this shape",
                f"WIDTHxDEPTHxNODES = {self}",
                "; ".join(wrong),
                "correct the numbers named, such as 4x5x16",
            )

    def __str__(self) -> str:
        return f"{self.width}x{self.depth}x{self.num_nodes}"

    @property
    def num_drafted(self) -> int:
        """Most nodes that can be drafted: `width` at depth 1, `width`² at each further one."""
        return self.width + (self.depth - 1) * self.width**2

    @property
    def num_expanded(self) -> int:
        """Most nodes that the draft reads in a round: room for them is needed in its cache."""
        return self.width * (self.depth - 1)

    @classmethod
    def parse(cls, text: str) -> "TreeShape":
        """The shape written `WIDTHxDEPTHxNODES`.

        Raises:
            TreeShapeInvalid: it is not three numbers, or no tree has this shape.
        """
        parts = text.strip().split("x")
        if len(parts) != 3 or not all(part.isascii() and part.isdecimal() and len(part) < 7 for part in parts):
            raise TreeShapeInvalid(
                f"'{text}' is not a tree's shape",
                "WIDTHxDEPTHxNODES",
                "three numbers are wanted: nodes expanded per depth, depth, nodes verified",
                "write it such as 4x5x16",
            )
        width, depth, num_nodes = map(int, parts)
        return cls(width=width, depth=depth, num_nodes=num_nodes)

    @classmethod
    def parse_all(cls, text: str) -> tuple["TreeShape", ...]:
        """Several shapes, separated by commas, in this order; none when the text is empty.

        Raises:
            TreeShapeInvalid: one of them cannot be read, or is given twice.
        """
        shapes = tuple(cls.parse(part) for part in text.split(",")) if text.strip() else ()
        if len(set(shapes)) < len(shapes):
            raise TreeShapeInvalid(
                "a tree is named twice", f"'{text}'", "each shape is measured once", "leave the second one out"
            )
        return shapes
