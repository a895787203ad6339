import pytest
import torch

from eyas.models.attention import cached_attention, ttt_attention


def operands(step: int, dtype: torch.dtype, heads: int = 4, kv_heads: int = 2, length: int = 37):
    generator = torch.Generator().manual_seed(step)

    def random(num_heads: int) -> torch.Tensor:
        return torch.randn(2, num_heads, length, 16, generator=generator, dtype=dtype).requires_grad_()

    return random(heads), [random(kv_heads) for _ in range(step + 1)], [random(kv_heads) for _ in range(step + 1)]


@pytest.mark.parametrize("step", [0, 1, 4])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_flash_equals_its_eager_twin_forward_and_backward(step, dtype, tolerance):
    query, keys, values = operands(step, dtype)
    grad = torch.randn(2, 4, 37, 16, generator=torch.Generator().manual_seed(9), dtype=dtype)
    results = []
    for backend in ("eager", "flash"):
        out = ttt_attention(query, keys, values, scale=0.25, backend=backend)
        results.append([out, *torch.autograd.grad(out, [query, *keys, *values], grad)])

    for eager, flash in zip(*results, strict=True):
        torch.testing.assert_close(flash, eager, atol=tolerance, rtol=tolerance)


def test_a_step_sees_its_own_diagonal_only():
    query, keys, values = operands(2, torch.float64)
    out = ttt_attention(query, keys, values, scale=0.25)

    (grad,) = torch.autograd.grad(out[:, :, 5].sum(), values[2])

    assert grad[:, :, 5].abs().sum() > 0
    grad[:, :, 5] = 0
    assert grad.abs().sum() == 0


@pytest.mark.parametrize("window", [None, 4])
def test_attention_over_a_cache_equals_the_last_rows_of_a_whole_pass(window):
    query, (keys,), (values,) = operands(0, torch.float64)
    whole = ttt_attention(query, [keys], [values], scale=0.25, window=window, backend="eager")

    for num_new in (1, 3, 37):
        last = cached_attention(query[:, :, -num_new:], keys, values, scale=0.25, window=window)
        torch.testing.assert_close(last, whole[:, :, -num_new:])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("step", [0, 1, 4])
def test_the_gpu_s_flash_kernel_gives_the_eager_twin_s_gradients_too(step):
    query, keys, values = operands(step, torch.float32)
    wide = [t.detach().cuda().requires_grad_() for t in (query, *keys, *values)]
    half = [t.detach().bfloat16().requires_grad_() for t in wide]
    grad = torch.randn(2, 4, 37, 16, generator=torch.Generator().manual_seed(9)).cuda()

    def run(tensors, backend):
        q, k, v = tensors[0], tensors[1 : step + 2], tensors[step + 2 :]
        out = ttt_attention(q, k, v, scale=0.25, backend=backend)
        return [out, *torch.autograd.grad(out, tensors, grad.to(out.dtype))]

    for exact, flash in zip(run(wide, "eager"), run(half, "flash"), strict=True):
        torch.testing.assert_close(flash.float(), exact, atol=0.03, rtol=0.03)
