"""Further wrong answers to lesson 08, each with what the message must say."""

import kernelcheck

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


def _never_ends():
    return """__global__ void block_sums(const float* x, float* out, int n) {
        __shared__ float part[256];
        int at = blockIdx.x * blockDim.x + threadIdx.x;
        part[threadIdx.x] = at < n ? x[at] : 0.0f;
        for (int half = 128; half >= 0; half /= 2) {
            __syncthreads();
            if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        }
        if (threadIdx.x == 0) out[blockIdx.x] = part[0];
    }"""


WRONG = {
    "scale_add": [
        ("writes to x", _writes_x),
        ("torch's methods do not exist here", _in_python),
        ("tl.store writes its result", _forgets),
        ("stands under @triton.jit", triton.jit(_writes_x)),
    ],
    "keep_rows_operator": [
        ("returns a function", _not_an_operator),
    ],
    "block_sums": [
        ("requests", _one_thread),
        ("had not ended after 1 s", _never_ends),
    ],
}
