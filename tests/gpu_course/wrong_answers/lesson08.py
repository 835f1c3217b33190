"""Further wrong answers to lesson 08, each with what the message must say."""

import kernelcheck
from gpu_course.checks import edit

triton, tl = kernelcheck.triton(interpreter=True)


def _writes_x(x, x_stride, y, out, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    scaled = factor * tl.load(x + at * x_stride, mask=at < n)
    tl.store(x + at * x_stride, scaled, mask=at < n)
    tl.store(out + at, scaled + tl.load(y + at, mask=at < n), mask=at < n)


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


WRONG = {
    "scale_add": [
        ("writes to x", _writes_x),
        ("torch's methods do not exist here", _in_python),
        ("tl.store writes its result", _forgets),
        ("stands under @triton.jit", triton.jit(_writes_x)),
    ],
    "bias_gelu": [
        ("bytes loaded", edit("    z +=", "    tl.load(bias + at, mask=inside)\n    z +=")),
        ("other values", edit("tl.arange(0, BLOCK)", "tl.arange(0, 512)")),
        ("fp32", edit("inside).to(tl.float32)\n    tl", "inside)\n    z = z.to(tl.float16)\n    tl")),
    ],
    "bias_gelu_backward": [
        ("modifies its input", edit("grad_x = grad * slope", "grad_x = grad.mul_(slope)")),
    ],
    "keep_rows_operator": [
        ("returns a function", _not_an_operator),
        ("has another name", edit("custom_op(name,", 'custom_op("mine::keep_rows",')),
        ("stack expects", edit("x[kept]", "torch.stack([row for row, keep in zip(x, kept) if keep])")),
    ],
    "block_sums": [
        ("does not compile", edit("float part[256];", "float part[256]")),
        ("returns a NoneType", edit('return r"""', 'r"""')),
        ("there is no kernel block_sums", edit("void block_sums", "void sums")),
        ("takes 2 arguments", edit("float* out, int n)", "float* out)", "at < n", "at < 256")),
        ("requests", _one_thread),
    ],
}  # fmt: skip
