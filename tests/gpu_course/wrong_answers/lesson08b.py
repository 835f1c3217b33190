"""Further wrong answers to the kernel gym, each with what the message must say."""

from gpu_course.checks import edit

WRONG = {
    "layer_norm": [("returns nothing: tl.store", edit("    tl.store(out + row * columns + at, centred", "    (centred",
                                                      "tl.load(bias + at, mask=inside), mask=inside)",
                                                      "tl.load(bias + at, mask=inside))"))],
    "attention": [("a block fp32[16] after one turn", edit('tl.full((BLOCK,), -float("inf"), dtype=tl.float32)',
                                                           '-float("inf")'))],
    "linear_scan": [("picked by pointers or tl.where", edit(
        "tl.sum(tl.where(at == start + BLOCK - 1, states, 0.0), axis=0)", "states[BLOCK - 1]"))],
    "top_k": [("cannot be set", edit('values = tl.where(at == best, -float("inf"), values)',
                                     'values[best] = -float("inf")'))],
    "rotary": [("no `**`", edit("tl.exp2(-at / HALF * tl.log2(base))", "base ** (-at / HALF)"))],
    "adamw": [("writes to grad", edit("tl.store(square + at, v, mask=inside)",
                                      "tl.store(square + at, v, mask=inside)\n"
                                      "    tl.store(grad + at, 0 * g, mask=inside)")),
              ("stores nothing to square", edit("    tl.store(square + at, v, mask=inside)", ""))],
    "transpose": [("does not compile", edit("tile[32][33];", "tile[32][33]"))],
}  # fmt: skip
