"""Further wrong answers to lesson 08, each with what the message must say."""

import kernelcheck
from gpu_course.checks import edit

triton, tl = kernelcheck.triton(interpreter=True)


def _writes_x(x, x_stride, y, out, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    scaled = factor * tl.load(x + at * x_stride, mask=at < n)
    tl.store(x + at * x_stride, scaled, mask=at < n)
    tl.store(out + at, scaled + tl.load(y + at, mask=at < n), mask=at < n)


def _loops(x, x_stride, y, out, n, factor, BLOCK: tl.constexpr):
    at = 0
    while at < n:
        tl.store(out + at, factor * tl.load(x + at * x_stride) + tl.load(y + at))


def _forgets(x, x_stride, y, out, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    return factor * tl.load(x + at * x_stride, mask=at < n) + tl.load(y + at, mask=at < n)


def _in_python(x, x_stride, y, out, n, factor, BLOCK: tl.constexpr):
    out.copy_(factor * x + y)


def _not_an_operator(name):
    def keep_rows(x, level, seen):
        kept = x.mean(1) > level
        seen.add_(kept)
        return x[kept]

    return keep_rows


def _one_thread():
    return """__global__ void block_sums(const float* x, float* out, int n) {
        if (threadIdx.x) return;
        float sum = 0;
        for (int at = blockIdx.x * 256; at < n && at < blockIdx.x * 256 + 256; at++) sum += x[at];
        out[blockIdx.x] = sum;
    }"""


_RIGHT = "inner[:, None] * b_row + columns[None, :] * b_column"
_RETURN = "return grad_x if ctx.needs_input_grad[0] else None, grad_bias"
WRONG = {
    "scale_add": [
        ("writes to x", _writes_x),
        ("which program 0 writes too", edit("tl.program_id(0) * BLOCK", "tl.program_id(0) // 2 * BLOCK")),
        (" end", _loops),
        ("torch's methods do not exist here", _in_python),
        ("tl.store writes its result", _forgets),
        ("stores nothing to out", edit("tl.store(out + at, scaled", "print('sum', scaled")),
        ("stands under @triton.jit", triton.jit(_writes_x)),
    ],
    "bias_gelu": [
        ("has other values", edit("0.5 * z * (1", "0.5 * z * (2")),
        ("fp32", edit("inside).to(tl.float32)\n    tl", "inside)\n    z = z.to(tl.float16)\n    tl")),
    ],
    "softmax_rows": [
        ("has other values", edit("tl.exp(values", "tl.exp2(values")),
        ("axis", edit("tl.max(values, axis=0)", "tl.max(values, axis=1)")),
    ],
    "bias_gelu_backward": [
        ("is None: is a return missing?", edit(_RETURN, "pass")),
        ("has 1 entries, expected 2", edit(_RETURN, "return (grad_x,)")),
        ("modifies its input", edit("grad_x = grad * slope", "grad_x = grad.mul_(slope)")),
    ],
    "keep_rows_operator": [
        ("returns a function", _not_an_operator),
        ("has shape", edit("> level", ">= 0")),
        ("has another name", edit("custom_op(name,", 'custom_op("mine::keep_rows",')),
        ("stack expects", edit("x[kept]", "torch.stack([row for row, keep in zip(x, kept) if keep])")),
        ("has dtype", edit("return x[kept]", "return x[kept].half()")),
    ],
    "matmul_tiles": [
        ("has other values", edit("total += tl.dot(left, right", "total -= tl.dot(left, right")),
        ("bytes loaded", edit("        total += ", f"        tl.load(b + {_RIGHT}, right_mask)\n        total += ")),
    ],
    "block_sums": [
        ("does not compile", edit("float part[256];", "float part[256]")),
        ("returns a NoneType", edit('return r"""', 'r"""')),
        ("there is no kernel block_sums", edit("void block_sums", "void sums")),
        ("takes 2 arguments", edit("float* out, int n)", "float* out)", "at < n", "at < 256")),
        ("requests", _one_thread),
        ("out of bounds", edit("float part[256]", "float part[128]")),
    ],
}  # fmt: skip
