"""The pickle of a state dict, byte by byte, as torch writes it."""

STORAGE = b"ctorch\nFloatStorage\n"


def tensor(
    key: str = "0",
    elements: int = 6,
    offset: int = 0,
    shape: bytes = b"K\x02K\x03\x86",
    stride: bytes = b"K\x03K\x01\x86",
) -> bytes:
    text = lambda s: b"X" + len(s).to_bytes(4, "little") + s.encode()  # noqa: E731
    identity = (
        b"(" + text("storage") + STORAGE + text(key) + text("cpu") + b"J" + elements.to_bytes(4, "little") + b"tQ"
    )
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n("
        + identity
        + b"J"
        + offset.to_bytes(4, "little")
        + shape
        + stride
        + b"\x89ccollections\nOrderedDict\n)RtR"
    )


def state_dict(*items: tuple[str, bytes]) -> bytes:
    names = b"".join(b"X" + len(n).to_bytes(4, "little") + n.encode() + value for n, value in items)
    return b"\x80\x02ccollections\nOrderedDict\n)R(" + names + b"u."
