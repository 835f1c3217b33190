"""Do operators that a reader writes run on the simulated GPU as on the CPU, and what does its clock take for them?"""

import itertools

import pytest
import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError
from torch.utils.flop_counter import register_flop_formula

import simgpu

_names = itertools.count()


def defined(function, name: str = "op", **options):
    """Return a custom operator with a name of its own, as the cells of a lesson define one."""
    options = {"mutates_args": ()} | options
    return torch.library.custom_op(f"course_tests{next(_names)}::{name}", function, **options)


def kernels(function, *args):
    """Return the simulated kernels that a call runs: name, bytes and FLOPs of each."""
    with simgpu.timeline() as timeline:
        function(*args)
    return [(one.name.partition("::")[2], one.nbytes, one.flops) for one in timeline.select("kernel")]


def test_the_body_gets_tensors_of_the_cpu_and_the_result_is_on_the_gpu(sim):
    seen = []

    def body(x: Tensor, y: Tensor) -> Tensor:
        seen.append((type(x), x.device.type, x.stride()))
        return torch.from_numpy(x.numpy() + y.numpy())

    result = defined(body)(torch.ones(2, 3, device=sim).t(), torch.ones(3, 2, device=sim))
    assert seen == [(Tensor, "cpu", (1, 3))]
    assert result.device == sim and torch.equal(result.cpu(), torch.full((3, 2), 2.0))


def test_gradients_of_operators_and_functions_are_checked_on_the_gpu(sim):
    class Cube(torch.autograd.Function):
        factor = 3

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, gradient):
            return Cube.factor * gradient * ctx.saved_tensors[0] ** 2

    def body(x: Tensor) -> Tensor:
        return x**3

    cube = defined(body)
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        cube(torch.ones(2, device=sim, requires_grad=True)).sum().backward()
    cube.register_autograd(Cube.backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
    x = torch.tensor([0.5, -2.0], dtype=torch.float64, device=sim, requires_grad=True)
    for function in (cube, Cube.apply):
        assert torch.autograd.gradcheck(function, (x,))
    Cube.factor = 2
    for function in (cube, Cube.apply):
        with pytest.raises(GradcheckError, match="Jacobian mismatch"):
            torch.autograd.gradcheck(function, (x,))


def test_autograd_sees_a_change_that_is_declared_and_only_that(sim):
    def body(x: Tensor) -> None:
        x.add_(1)

    for declared in ((), ("x",)):
        change = defined(body, mutates_args=declared)
        leaf = torch.ones(3, device=sim, requires_grad=True)
        square = (y := leaf * 1) * y
        change(y)
        assert y.tolist() == [2.0] * 3 and y._version == len(declared)
        if declared:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                square.sum().backward()
        else:  # wrong in silence, as on a GPU
            square.sum().backward()
            assert leaf.grad.tolist() == [4.0] * 3


def test_a_result_that_is_an_input_or_a_view_of_it_is_refused(sim):
    def same(x: Tensor) -> Tensor:
        return x

    def part(x: Tensor) -> Tensor:
        return x[1:]

    for body in (same, part):
        with pytest.raises(RuntimeError, match="may not alias any inputs"):
            defined(body)(torch.ones(3, device=sim))


def test_an_operator_is_one_kernel_with_the_flops_of_its_formula(sim):
    def product(a: Tensor, b: Tensor) -> Tensor:
        return (a @ b).relu() + 1

    op, x, nbytes = defined(product), torch.ones(64, 64, device=sim), 3 * 64 * 64 * 4
    assert kernels(op, x, x) == [("op", nbytes, 64 * 64)]

    def flops(a_shape, b_shape, *args, out_shape=None, **kwargs):
        return 2 * a_shape[0] * a_shape[1] * b_shape[1]

    register_flop_formula(op._opoverload.overloadpacket)(flops)  # after the first call, too
    assert kernels(op, x, x) == [("op", nbytes, 2 * 64**3)]


@pytest.mark.parametrize("name", ["convolution", "embedding", "empty", "nonzero", "copy_", "equal"])
def test_an_operator_is_not_taken_for_pytorchs_of_the_same_name(sim, name):
    def twice(x: Tensor) -> Tensor:
        return x * 2

    op, x = defined(twice, name), torch.ones(10, device=sim)
    assert kernels(op, x) == [(name, 80, 10)] and op(x).tolist() == [2.0] * 10


def test_a_cell_that_is_run_again_replaces_its_operator(sim):
    x = torch.ones(2, device=sim)
    for factor in (2, 3):
        op = torch.library.custom_op(
            "course_tests::again", lambda x, factor=factor: x * factor, mutates_args=(), schema="(Tensor x) -> Tensor"
        )
        assert op(x).tolist() == torch.ops.course_tests.again(x).tolist() == [factor] * 2


def test_opcheck_and_compile(sim):
    def body(x: Tensor) -> Tensor:
        return x * 2

    op = defined(body)
    op.register_fake(torch.empty_like)
    for place in ("cpu", sim):
        assert set(torch.library.opcheck(op, (torch.ones(3, device=place),)).values()) == {"SUCCESS"}
    compiled = torch.compile(lambda x: op(x) + 1, backend="aot_eager", fullgraph=True)
    assert compiled(torch.ones(3)).tolist() == [3.0] * 3
    assert compiled(torch.ones(3, device=sim)).tolist() == [3.0] * 3
