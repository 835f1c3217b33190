"""Does an operator have the right gradient, and does it say truly what it returns and changes?"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from gpu_course.checks import Case, edges, edit, lesson
from gpu_course.common.probes import elsewhere

exercise = lesson("08")


@exercise(
    title="The backward pass of bias and GELU",
    minutes=8,
    difficulty=2,
    hints=(
        "By the chain rule, multiply `grad`, which comes in, by the slope of GELU at z = x + bias. Both terms count.",
        "x has the slope's shape. `bias` was added to every row, so each of its gradients is a sum over the rows: dim "
        "0.",
        "Recompute z from ctx.saved_tensors, then the slope with torch.erf and torch.exp. ctx.needs_input_grad holds "
        "two truth values: put None in the place of what is not needed, before it is computed.",
    ),
)
def bias_gelu_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the gradients for x and bias, and None for one that is not needed."""
    x, bias = ctx.saved_tensors
    z = x + bias
    slope = 0.5 * (1 + torch.erf(z / math.sqrt(2))) + z * torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    grad_x = grad * slope
    grad_bias = grad_x.sum(0) if ctx.needs_input_grad[1] else None  # bias was added to every row
    return grad_x if ctx.needs_input_grad[0] else None, grad_bias


@bias_gelu_backward.alternative("PyTorch has the slope as an operator of its own: one kernel instead of nine")
def _(ctx, grad):
    x, bias = ctx.saved_tensors
    grad_x = torch.ops.aten.gelu_backward(grad, x + bias)
    needs_x, needs_bias = ctx.needs_input_grad
    return grad_x if needs_x else None, grad_x.sum(0) if needs_bias else None


@dataclass
class _Context:
    """What autograd hands to a backward function, as far as this exercise needs it."""

    saved_tensors: tuple[torch.Tensor, torch.Tensor]
    needs_input_grad: tuple[bool, bool]

    def __repr__(self) -> str:
        return f"ctx of x {tuple(self.saved_tensors[0].shape)}, needs_input_grad={self.needs_input_grad}"


_NOBODY = (
    "computes a gradient of bias that nobody needs",
    "ctx.needs_input_grad says so: each costs a pass over memory",
)


bias_gelu_backward.leaves_out("x has rows and columns", "scalar")
bias_gelu_backward.leaves_out("gradients are ordinary numbers", "huge tiny not_finite zero")
bias_gelu_backward.leaves_out(
    "the slope needs more digits than 16 bits have, and real numbers",
    "half bfloat16 whole bool complex",
)
bias_gelu_backward.leaves_out("two places show that none is named", "elsewhere")
bias_gelu_backward.leaves_out("no default is asked", "default_type")
bias_gelu_backward.leaves_out("it is handed a context, which cannot be kept for later", "second_call")


@bias_gelu_backward.checks
def _(case: Case) -> None:
    both = 0
    for shape, needs, form in (
        ((1, 1), (True, True), "dense"),
        ((3, 2), (True, True), "dense"),
        ((2, 3), (True, False), "dense"),
        ((3, 2), (False, True), "dense"),
        ((3, 2), (True, True), "expanded"),
        ((4, 7), (True, True), "transposed"),
    ):
        x, bias = torch.randn(shape), torch.randn(shape[1])
        grad = {
            "dense": torch.randn(shape),
            "expanded": torch.tensor(0.7).expand(shape),  # what sum() sends back
            "transposed": torch.randn(shape[::-1]).t(),
        }[form]
        exact = [tensor.double().requires_grad_(need) for tensor, need in zip((x, bias), needs, strict=True)]
        F.gelu(exact[0] + exact[1]).backward(grad.double())
        expected = tuple(tensor.grad.float().to(case.device) if tensor.grad is not None else None for tensor in exact)
        ctx = _Context((x.to(case.device), bias.to(case.device)), needs)
        given = grad.to(case.device) if form == "dense" else _like(grad, case.device)
        got = case.call(ctx, given)
        both = case.counts.operators if all(needs) else both
        case.instead(not needs[1] and case.counts.operators >= both, *_NOBODY)
        case.equal(
            tuple(got) if isinstance(got, list) else got,
            expected,
            rtol=1e-4,
            atol=1e-5,
            why=f"gradients of x and bias, None where not needed; the incoming gradient is {form}",
        )
    wide = torch.float64  # which gradcheck needs: nothing is rounded to float32
    for shape, scale, dtype, device, rtol in (
        ((4, 3), 20.0, torch.float32, case.device, 1e-4),
        ((0, 3), 1.0, torch.float32, case.device, 1e-4),
        ((2, 3), 1.0, wide, edges.supporting(case.device, wide), 1e-8),
        ((2, 3), 1.0, torch.float32, torch.device("cpu"), 1e-4),
    ):
        x, bias, grad = (scale * torch.randn(size, dtype=dtype) for size in (shape, shape[1:], shape))
        exact = [tensor.double().requires_grad_() for tensor in (x, bias)]
        F.gelu(exact[0] + exact[1]).backward(grad.double())
        got = case.call(_Context((x.to(device), bias.to(device)), (True, True)), grad.to(device))
        expected = tuple(tensor.grad.to(device, dtype) for tensor in exact)
        case.equal(tuple(got) if isinstance(got, list) else got, expected, rtol=rtol, atol=rtol / 10)


def _like(grad: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a two-dimensional `grad` on `device` with strides of the same kind: expanded, or transposed."""
    if 0 in grad.stride():
        return grad[0, 0].to(device).expand(grad.shape)
    return grad.t().contiguous().to(device).t()


@exercise(
    title="An operator that keeps rows",
    minutes=25,
    difficulty=3,
    hints=(
        "Three statements: the function under @torch.library.custom_op, the fake under @keep_rows.register_fake, "
        "return.",
        "mutates_args lists the names of the arguments that the body changes. The fake never looks at numbers: it "
        "makes a tensor of the right shape with x.new_empty(rows, columns), and how many rows there are it cannot "
        "know.",
        "torch.library.get_ctx().new_dynamic_size() stands for a number that only the numbers of x decide. In the body "
        "a comparison gives the mask, which both indexes x and is added to `seen`.",
    ),
)
def keep_rows_operator(name: str) -> torch.library.CustomOpDef:
    """Return the operator: (x, level, seen) -> rows of x with a mean above level."""

    @torch.library.custom_op(name, mutates_args=("seen",))
    def keep_rows(x: torch.Tensor, level: float, seen: torch.Tensor) -> torch.Tensor:
        kept = x.mean(1) > level
        seen.add_(kept)
        return x[kept]  # a new tensor, always

    @keep_rows.register_fake
    def _(x, level, seen):
        return x.new_empty(torch.library.get_ctx().new_dynamic_size(), x.shape[1])

    return keep_rows


@keep_rows_operator.alternative("the schema as text, not annotations: for functions that you cannot change")
def _(name):
    def keep_rows(x, level, seen):
        kept = x.mean(1) > level
        seen += kept
        return x[kept]

    def fake(x, level, seen):
        return x.new_empty((torch.library.get_ctx().new_dynamic_size(), x.shape[1]))

    schema = "(Tensor x, float level, Tensor(a!) seen) -> Tensor"
    operator = torch.library.custom_op(name, keep_rows, mutates_args=("seen",), schema=schema)
    operator.register_fake(fake)
    return operator


keep_rows_operator.alternative(
    "PyTorch's fake of indexing makes a dynamic size itself; where no fake can repeat the body, ask for one",
    edit("""
        -        return x.new_empty(torch.library.get_ctx().new_dynamic_size(), x.shape[1])
        +        return x[x.mean(1) > level]
    """),
)


_UNSEEN = "torch.compile may then reorder or drop it, and autograd does not notice: mutates_args"
_FOR_NOTHING = "then x is copied, or saved again, for nothing"
_STRIDES = "torch.compile computes addresses with the fake's strides: promise these, or return others"


keep_rows_operator.leaves_out("x has rows and columns", "scalar")
keep_rows_operator.leaves_out("which numbers they are plays no part, but for their mean", "tiny not_finite")
keep_rows_operator.leaves_out(
    "a mean needs floating-point numbers, of which two formats are drawn",
    "bfloat16 bool complex",
)
keep_rows_operator.leaves_out("no default is asked", "default_type")
keep_rows_operator.leaves_out("a level is any float", "number_large")
keep_rows_operator.leaves_out("the operator is defined once", "second_call")


@keep_rows_operator.checks
def _(case: Case) -> None:
    operator = case.call("exercise08::rows_above")  # a name that no cell shows
    case.instead(
        not isinstance(operator, torch.library.CustomOpDef),
        f"returns a {type(operator).__name__}",
        "return what torch.library.custom_op makes",
    )
    named = repr(operator) == "<CustomOpDef(exercise08::rows_above)>"
    case.instead(not named, "has another name than the given one", "an operator is found by its name", got=operator)
    numbers = torch.tensor(
        [[3.0, 1.0, -1.0], [1.0, -2.0, 0.5], [4.0, 5.0, 6.5], [0.25, -0.1, 0.5], [0.5, 0.5, 0.5]]
    )  # the last has a mean of `level`
    forms = (numbers, numbers.half(), numbers.t().contiguous().t(), numbers + 9, numbers - 9)  # …, all, none
    _declares(case, operator)
    for x in forms:
        seen = torch.tensor([5, 0, 300, -7, 70_000])  # any whole numbers may stand there
        kept = torch.tensor([row.mean().item() > 0.5 for row in x])
        x, counted = x.to(case.device), seen.to(case.device)
        before = x.clone()
        got = case.use(operator, x, 0.5, counted, modifies=True)
        case.equal(got, x.cpu()[kept].to(case.device))
        case.equal(counted, (seen + kept).to(case.device), why="`seen` counts how often each row was kept")
        case.equal(x, before, why="x stays as it is")
        case.instead(not got.is_contiguous(), "returns rows that are not contiguous", _STRIDES)
    edges.note("limit")  # a mean of exactly `level`
    for x, level in (
        (numbers, 0.0),
        (numbers + 1e-4, 0.5),  # above it by less than 16 bits show
        (edges.sliced(numbers), -0.5),
        (numbers.double(), 0.5),
        (numbers[:, :1], 1.0),
        (numbers[:0], 0.5),
        (numbers.to(elsewhere(case.device)), 0.5),
    ):
        device = x.device if x.device.type != "cpu" else edges.supporting(case.device, x)
        kept = torch.tensor([row.mean().item() > level for row in x], dtype=torch.bool)
        got = case.use(operator, edges.on(x, device), level, torch.zeros(len(x)).to(device), modifies=True)
        case.equal(got, x.cpu()[kept].to(device), why="rows whose mean is above `level`, in the format of x")
    for x in (*forms[:3], numbers.to("meta")):
        _fake_is_true(case, operator, x)
    results = torch.library.opcheck(operator, (numbers, 0.5, torch.zeros(5, dtype=torch.int64)), raise_exception=False)
    failed = [f"{test}: {str(said).splitlines()[0]}" for test, said in results.items() if said != "SUCCESS"]
    case.instead(failed, f"opcheck fails. {'; '.join(failed)}")


def _declares(case: Case, operator: torch.library.CustomOpDef) -> None:
    """Fail unless the schema says that `seen` is changed, and x is not."""
    schema = torch.ops.exercise08.rows_above.default._schema
    written = [argument.name for argument in schema.arguments if argument.is_write]
    case.instead("seen" not in written, "does not declare that it changes `seen`", _UNSEEN)
    case.instead("x" in written, "declares that it changes x", _FOR_NOTHING)


def _fake_is_true(case: Case, operator: torch.library.CustomOpDef, x: torch.Tensor) -> None:
    """Fail unless the operator's fake promises what the operator returns for `x`."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    fakes = mode.from_tensor(x), mode.from_tensor(torch.zeros(5, dtype=torch.int64))
    got = case.use(_Fake(operator, mode), fakes[0], 0.5, fakes[1], modifies=True)
    case.instead(got is _NO_FAKE, "registers no fake", "fake tensors and torch.compile then stop at the operator")
    why = "torch.compile plans with what the fake says, and goes wrong where that is not true"
    case.instead(not isinstance(got, torch.Tensor), f"its fake returns a {type(got).__name__}", why)
    case.instead(got.dtype != x.dtype, "its fake has another dtype", why, expected=x.dtype, got=got.dtype)
    case.instead(got.device != x.device, "its fake is on another device", why, expected=x.device, got=got.device)
    case.instead(
        got.dim() != 2 or _known(got.shape[1]) != x.shape[1],
        "its fake has another shape",
        why,
        expected=("rows kept", x.shape[1]),
        got=str(tuple(got.shape)),
    )
    case.instead(
        _known(got.shape[0]) is not None,
        "its fake claims to know the number of rows",
        "only the numbers decide it, and a fake has none: get_ctx().new_dynamic_size()",
        expected="a new dynamic size",
        got=str(got.shape[0]),
    )
    case.instead(_known(got.stride(1)) != 1, "its fake has other strides", why)


def _known(size: int | torch.SymInt) -> int | None:
    """Return a size of a fake tensor as a number, None where only numbers of tensors decide it."""
    return size.node.hint if isinstance(size, torch.SymInt) else size


@dataclass
class _Fake:
    """Calls an operator under fake tensors."""

    operator: Any
    mode: FakeTensorMode
    __name__ = "the operator, on fake tensors"

    def __call__(self, *args: Any) -> Any:
        with self.mode:
            try:
                return self.operator(*args)
            except RuntimeError as error:
                if "no fake impl" in str(error):
                    return _NO_FAKE
                raise


_NO_FAKE = object()  # what an operator without a fake kernel gives
