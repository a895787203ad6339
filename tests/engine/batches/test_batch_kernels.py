"""The kernels of a batched pass compute what their eager twins compute."""

from pathlib import Path

from triton_interpreter import interpreted, needs_triton


@needs_triton
def test_kernels_compute_what_their_eager_twins_compute():
    errors = interpreted(Path(__file__).with_name("batch_interpreted.py"))

    assert {name: error for name, error in errors.items() if error > 1e-4} == {}
    passes = {"logits", "cache", "aux", "pieces", "cache behind pieces"}
    assert set(errors) == passes | {"drawn", "drawn among ties", "drawn in bf16"}
