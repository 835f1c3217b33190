"""The exercise “An operator that keeps rows”."""

from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from gpu_course.checks import Case, edges, exercise
from gpu_course.common.probes import elsewhere


@exercise(
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


_UNSEEN = "torch.compile may then reorder or drop it, and autograd does not notice: mutates_args"
_FOR_NOTHING = "then x is copied, or saved again, for nothing"
_STRIDES = "torch.compile computes addresses with the fake's strides: promise these, or return others"


keep_rows_operator.exempt("x has rows and columns", "scalar")
keep_rows_operator.exempt("which numbers they are plays no part, but for their mean", "tiny not_finite")
keep_rows_operator.exempt("a mean needs floating-point numbers; two formats are drawn", "bfloat16 bool complex")
keep_rows_operator.exempt("no default is asked", "default_type")
keep_rows_operator.exempt("a level is any float", "number_large")
keep_rows_operator.exempt("the operator is defined once", "second_call")


@keep_rows_operator.checks
def _(case: Case) -> None:
    operator = case.call("exercise08::rows_above")  # a name that no cell shows
    why = "return what torch.library.custom_op makes"
    case.fail_if(not isinstance(operator, torch.library.CustomOpDef), f"returns a {type(operator).__name__}", why)
    named = repr(operator) == "<CustomOpDef(exercise08::rows_above)>"
    case.fail_if(not named, "has another name than the given one", "an operator is found by its name", got=operator)
    numbers = torch.tensor(
        [[3.0, 1.0, -1.0], [1.0, -2.0, 0.5], [4.0, 5.0, 6.5], [0.25, -0.1, 0.5], [0.5, 0.5, 0.5]]
    )  # the last has a mean of `level`
    forms = (numbers, numbers.half(), numbers.t().contiguous().t(), numbers + 9, numbers - 9)  # …, all, none
    _declares(case, operator)
    for x in forms:
        seen = torch.tensor([5, 0, 300, -7, 70_000])  # any whole numbers may stand there
        kept = torch.tensor([row.mean().item() > 0.5 for row in x])
        x, counted = x.to(case.device), seen.to(case.device, copy=True)
        before = x.clone()
        got = case.use(operator, x, 0.5, counted, modifies=True)
        case.equal(got, x.cpu()[kept].to(case.device))
        case.equal(counted, (seen + kept).to(case.device), why="`seen` counts how often each row was kept")
        case.equal(x, before, why="x stays as it is")
        case.fail_if(not got.is_contiguous(), "returns rows that are not contiguous", _STRIDES)
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
    case.fail_if(failed, f"opcheck fails. {'; '.join(failed)}")


def _declares(case: Case, operator: torch.library.CustomOpDef) -> None:
    """Fail unless the schema says that `seen` is changed, and x is not."""
    schema = torch.ops.exercise08.rows_above.default._schema
    written = [argument.name for argument in schema.arguments if argument.is_write]
    case.fail_if("seen" not in written, "does not declare that it changes `seen`", _UNSEEN)
    case.fail_if("x" in written, "declares that it changes x", _FOR_NOTHING)


def _fake_is_true(case: Case, operator: torch.library.CustomOpDef, x: torch.Tensor) -> None:
    """Fail unless the operator's fake promises what the operator returns for `x`."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    fakes = mode.from_tensor(x), mode.from_tensor(torch.zeros(5, dtype=torch.int64))
    got = case.use(_Fake(operator, mode), fakes[0], 0.5, fakes[1], modifies=True)
    case.fail_if(got is _NO_FAKE, "registers no fake", "fake tensors and torch.compile then stop at the operator")
    why = "torch.compile plans with what the fake says, and goes wrong where that is not true"
    case.fail_if(not isinstance(got, torch.Tensor), f"its fake returns a {type(got).__name__}", why)
    case.fail_if(got.dtype != x.dtype, "its fake has another dtype", why, expected=x.dtype, got=got.dtype)
    case.fail_if(got.device != x.device, "its fake is on another device", why, expected=x.device, got=got.device)
    case.fail_if(
        got.dim() != 2 or _known(got.shape[1]) != x.shape[1], "its fake has another shape", why,
        expected=("rows kept", x.shape[1]), got=str(tuple(got.shape)),
    )  # fmt: skip
    case.fail_if(
        _known(got.shape[0]) is not None,
        "its fake claims to know the number of rows",
        "only the numbers decide it, and a fake has none: get_ctx().new_dynamic_size()",
        expected="a new dynamic size",
        got=str(got.shape[0]),
    )
    case.fail_if(_known(got.stride(1)) != 1, "its fake has other strides", why)


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
