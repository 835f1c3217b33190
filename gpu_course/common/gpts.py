"""Sizes of the language models that explorers know: decoders in the manner of GPT-2."""

__all__ = ["MODELS"]


def _gpt(width: int, layers: int, heads: int) -> dict[str, int]:
    return {"width": width, "layers": layers, "heads": heads, "vocabulary": 50_257}


# Decoders in the manner of GPT-2: norms first, GELU, a small network of four widths, learned places, the output layer
# tied to the embedding. (GPT-3 leaves out scores in every other block, which fused attention does not keep anyway.)
# Models that are built otherwise, such as Llama, are not in the table: the formulas are not theirs.
MODELS = {
    # https://huggingface.co/openai-community/gpt2/blob/main/config.json, and the same of gpt2-medium, -large and -xl
    "GPT-2": _gpt(768, 12, 12),
    "GPT-2 medium": _gpt(1024, 24, 16),
    "GPT-2 large": _gpt(1280, 36, 20),
    "GPT-2 XL": _gpt(1600, 48, 25),
    # https://huggingface.co/cerebras/Cerebras-GPT-13B, its table and config.json
    "Cerebras-GPT 2.7B": _gpt(2560, 32, 32),
    "Cerebras-GPT 6.7B": _gpt(4096, 32, 32),
    "Cerebras-GPT 13B": _gpt(5120, 40, 40),
    # https://arxiv.org/abs/2005.14165, table 2.1; its tokens are those of GPT-2
    "GPT-3 175B": _gpt(12_288, 96, 96),
}
