"""Do models that others wrote train on the simulated GPU with the CPU's losses?

    python -m benchmarks.models             all of them
    python -m benchmarks.models gpt2 vit    those with such a text in their names

Two steps of AdamW of small models of timm, torchvision and transformers, from the same weights and on the same data.
These packages are dependencies of this command alone. Installed without their dependencies into a folder, which is put
on PYTHONPATH, they need safetensors, huggingface_hub, tokenizers, regex, pyyaml, requests, tqdm, httpx and their kin.
"""

from __future__ import annotations

import gc
import importlib
import sys
import time
import warnings
from functools import partial

import torch
import torch.nn.functional as F

import simgpu

CLASSES, RELATIVE = 10, 1e-4  # losses may differ by so much: sums of parts that PyTorch takes apart round otherwise

TIMM = {  # names by image size
    64: """resnet18 resnetv2_50 resnext50_32x4d efficientnet_b0 mobilenetv3_small_100 convnext_atto convnextv2_atto
        regnetx_002 densenet121 ghostnet_100 poolformer_s12 edgenext_xx_small mobilevit_xxs nfnet_f0 pvt_v2_b0""",
    224: """mixer_s32_224 vit_tiny_patch16_224 deit_tiny_patch16_224 swin_tiny_patch4_window7_224 cait_xxs24_224
        xcit_nano_12_p16_224 levit_128s maxvit_tiny_tf_224 eva02_tiny_patch14_224""",
}
VISION = {
    "alexnet": 64, "vgg11_bn": 64, "squeezenet1_1": 64, "shufflenet_v2_x0_5": 64, "mnasnet0_5": 64, "googlenet": 96,
    "inception_v3": 299, "wide_resnet50_2": 64, "mobilenet_v2": 64, "efficientnet_v2_s": 64, "vit_b_32": 224,
    "segmentation.lraspp_mobilenet_v3_large": 64, "segmentation.fcn_resnet50": 64, "video.r3d_18": 32,
}  # fmt: skip
TEXT = """gpt2 gpt_neo gpt_neox gptj llama mistral mixtral qwen2 qwen3 qwen2_moe gemma gemma2 phi phi3 falcon opt bloom
mpt stablelm olmo cohere starcoder2 mamba bert roberta albert electra distilbert deberta-v2 t5 bart""".split()  # noqa: SIM905
SMALL = {  # the same setting has many names; a configuration takes those that it knows
    "vocab_size": 256, "hidden_size": 64, "n_embd": 64, "d_model": 64, "dim": 64, "embedding_size": 64,
    "num_hidden_layers": 2, "n_layer": 2, "num_layers": 2, "n_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_attention_heads": 4, "n_head": 4, "num_heads": 4, "n_heads": 4, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "d_ff": 128, "hidden_dim": 128,
    "ffn_dim": 128, "ffn_hidden_size": 128, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128,
    "head_dim": 16, "d_kv": 16, "rotary_dim": 8,
    "max_position_embeddings": 64, "n_positions": 64, "max_seq_len": 64, "word_embed_proj_dim": 64, "num_experts": 4,
    "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 1, "use_cache": False,
}  # fmt: skip
SPECIAL = {"gpt_neo": {"attention_types": [[["global", "local"], 1]]}, "t5": {"decoder_start_token_id": 0}}


def import_torchvision() -> None:
    """Import it also beside a torch without CUDA, where its own operators, which no model here uses, cannot load."""
    if torch.version.cuda is None:
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    importlib.import_module("torchvision")


def timm_model(name: str, size: int):
    model = importlib.import_module("timm").create_model(name, num_classes=CLASSES)
    return model, (torch.randn(2, 3, size, size),), partial(classify, torch.arange(2))


def vision_model(name: str, size: int):
    folder, _, short = name.rpartition(".")
    module = importlib.import_module(f"torchvision.models{'.' * bool(folder)}{folder}")
    extra = {"weights_backbone": None} if folder == "segmentation" else {}
    model = getattr(module, short)(weights=None, num_classes=CLASSES, **extra)
    shape = (2, 3, 4, size, size) if folder == "video" else (2, 3, size, size)
    return model, (torch.randn(shape),), partial(classify, torch.arange(2))


def text_model(name: str):
    transformers = importlib.import_module("transformers")
    config = transformers.AutoConfig.for_model(name)
    known = {key: value for key, value in SMALL.items() if key in config.to_dict()}
    config = type(config)(**{**known, **SPECIAL.get(name, {})})
    kind = "AutoModelForSeq2SeqLM" if config.is_encoder_decoder else "AutoModelForCausalLM"
    if name in ("bert", "roberta", "albert", "electra", "distilbert", "deberta-v2"):
        kind = "AutoModelForMaskedLM"
    tokens = torch.randint(3, 256, (2, 16))
    return getattr(transformers, kind).from_config(config), (tokens,), labelled


def classify(labels, model, images):
    """Return the loss of whatever a model of images gives: logits, or a container with logits of pixels."""
    made = model(images)
    made = made if isinstance(made, torch.Tensor) else made.get("out") if hasattr(made, "get") else made[0]
    return F.cross_entropy(made.flatten(2).mean(-1) if made.dim() > 2 else made, labels.to(made.device))


def labelled(model, tokens):
    return model(input_ids=tokens, labels=tokens).loss


def losses(make, device: str) -> list[float]:
    """Return the losses of two steps on `device` and of the model after them."""
    torch.manual_seed(0)
    model, batch, loss_of = make()
    model.to(device).train()
    batch = [one.to(device) for one in batch]
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    found = []
    for _ in range(2):
        torch.manual_seed(1)  # dropout
        loss = loss_of(model, *batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    torch.manual_seed(1)
    return [*found, loss_of(model, *batch).item()]


def everything() -> dict:
    """Return what makes each model, its batch and its loss, by the name of the model."""
    found = {f"timm {name}": partial(timm_model, name, size) for size, names in TIMM.items() for name in names.split()}
    found |= {f"torchvision {name}": partial(vision_model, name, size) for name, size in VISION.items()}
    return found | {f"transformers {name}": partial(text_model, name) for name in TEXT}


def compare(make) -> str:
    """Return how the losses differ, "" if they do not, or why there are none on the CPU, in brackets."""
    try:
        expected = losses(make, "cpu")
    except Exception as error:
        return f"[{type(error).__name__}: {str(error)[:150]}]"
    try:
        got = losses(make, "sim:0")
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}"
    finally:
        gc.collect()
    close = all(abs(a - b) <= RELATIVE * abs(a) for a, b in zip(expected, got, strict=True))
    return "" if close else f"{got} and not {expected}"


def main(wanted: list[str]) -> int:
    """Compare models and print what differs; return how many do."""
    warnings.simplefilter("ignore")
    import_torchvision()
    importlib.import_module("transformers").logging.set_verbosity_error()
    simgpu.enable(capacity="8 GiB")
    tried = failed = 0
    for name, make in everything().items():
        if wanted and not any(text in name for text in wanted):
            continue
        start = time.perf_counter()
        problem = compare(make)
        away = problem.startswith("[")
        tried, failed = tried + (not away), failed + bool(problem and not away)
        print(f"{name:48} {problem or 'the same losses'} ({time.perf_counter() - start:.0f} s)", flush=True)
    print(f"{tried - failed} of {tried} models have the CPU's losses")
    return failed


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
