"""How large are well-known models that are built like `models.TransformerLM`? Presets of `will_it_fit`.

All are decoders in the manner of GPT-2: norms first, GELU, a small network of four widths, learned places, the output
layer tied to the embedding. (GPT-3 leaves out scores in every other block, which fused attention does not keep anyway.)
Models that are built otherwise, such as Llama, are not in the table: the formulas are not theirs.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

__all__ = ["MODELS", "Sizes"]


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model that `will_it_fit` asks for."""

    width: int
    layers: int
    heads: int
    vocabulary: int = 50_257

    def given(self) -> dict[str, int]:
        """Return them as arguments of `will_it_fit`."""
        return asdict(self)


MODELS = {
    # https://huggingface.co/openai-community/gpt2/blob/main/config.json, and the same of gpt2-medium, -large and -xl
    "GPT-2": Sizes(768, 12, 12),
    "GPT-2 medium": Sizes(1024, 24, 16),
    "GPT-2 large": Sizes(1280, 36, 20),
    "GPT-2 XL": Sizes(1600, 48, 25),
    # https://huggingface.co/cerebras/Cerebras-GPT-13B, its table and config.json
    "Cerebras-GPT 2.7B": Sizes(2560, 32, 32),
    "Cerebras-GPT 6.7B": Sizes(4096, 32, 32),
    "Cerebras-GPT 13B": Sizes(5120, 40, 40),
    # https://arxiv.org/abs/2005.14165, table 2.1; its tokens are those of GPT-2
    "GPT-3 175B": Sizes(12_288, 96, 96),
}
