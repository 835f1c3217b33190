"""The exercise “The memory of a KV cache”."""

import math

import torch

from gpu_course.checks import Case, edges, exercise


@exercise(
    minutes=10,
    difficulty=2,
    hints=(
        "Count the tokens for which there is room: each request has whole pages of its own.",
        "math.ceil(tokens / page) is the number of pages of a request; one without tokens has none.",
        "A token has a key and a value in each layer, and each of these has kv_heads * head_size numbers of "
        "dtype.itemsize bytes.",
    ),
)
def kv_cache_bytes(
    lengths: list[int], layers: int, kv_heads: int, head_size: int, dtype: torch.dtype, page: int
) -> int:
    """Return the bytes of the pages that hold all keys and values."""
    pages = sum(math.ceil(tokens / page) for tokens in lengths)  # a request shares no page with another
    numbers_a_token = 2 * layers * kv_heads * head_size  # a key and a value
    return pages * page * numbers_a_token * dtype.itemsize


@kv_cache_bytes.checks
def _(case: Case) -> None:
    for lengths, layers, kv_heads, head_size, dtype, page in (
        ([1], 1, 1, 1, torch.float16, 1),  # one token: a key and a value
        ([5], 1, 1, 1, torch.float32, 1),
        ([5, 16], 2, 4, 8, torch.float16, 16),  # the text's own: less than a page, and exactly one
        ([17], 3, 2, 4, torch.bfloat16, 16),  # "whole pages": one token more than a page
        ([15, 15, 15], 1, 1, 2, torch.float32, 16),  # "a page belongs to one request"
        ([], 2, 2, 2, torch.float16, 16),  # no request
        ([0, 3], 2, 2, 2, torch.float16, 4),  # one that has no token yet
        ([7, 900, 33], 5, 3, 7, torch.float8_e4m3fn, 10),  # a byte a number; sizes that divide nothing
        ([33, 7, 900], 5, 3, 7, torch.int8, 10),  # in another order, and as whole numbers
        ([3], 1, 1, 5, torch.float64, 2),
        ([2**31 + 5], 1, 1, 1, torch.float16, 2**20),
        ([9_000_000, 8_000_000], 126, 8, 128, torch.bfloat16, 16),  # more bytes than 32 bits count
    ):
        edges.note(*(["limit"] if page in lengths else []), *(["order"] if lengths == [33, 7, 900] else []))
        got = case.call(lengths, layers, kv_heads, head_size, dtype, page)
        tokens = 0
        for request in lengths:  # slowly: a page at a time
            room = 0
            while room < request:
                room += page
            tokens += room
        expected = tokens * layers * kv_heads * head_size * torch.empty(2, dtype=dtype, device="meta").nbytes
        case.equal(got, expected, why=f"tokens for which there is room: {tokens:,}")


kv_cache_bytes.exempt("a key holds ordinary numbers", "bool", "complex")
kv_cache_bytes.exempt("a request has tokens or none", "number_negative")
