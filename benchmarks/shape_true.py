"""Checkpoints with the layer sizes of Qwen3-VL-30B-A3B, few layers and random weights: for speed, never for quality.

python -m benchmarks.shape_true FOLDER --text-layers 2     writes one in the real format, sharded, with its index
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from transformers import AutoProcessor, GenerationConfig, Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration

from engines.checkpoint import DEMO_FOLDER

# Sizes of the published checkpoint; the vocabulary is the demo's, since its tokenizer is the one at hand.
TEXT = {
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 5_000_000.0,
        "mrope_interleaved": True,
        "mrope_section": [24, 20, 20],
    },
    "tie_word_embeddings": False,
}
VISION = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_heads": 16,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 2048,
    "num_position_embeddings": 2304,
}


def _build_model(text_layers: int, vision_layers: int, seed: int = 0) -> Qwen3VLMoeForConditionalGeneration:
    """The model in bf16, fit for saving only: tables that are computed on loading are left empty.

    One deepstack feature for every vision layer but the last, at most three as published.
    """
    demo = AutoProcessor.from_pretrained(DEMO_FOLDER).tokenizer
    token = demo.convert_tokens_to_ids
    config = Qwen3VLMoeConfig(
        text_config={
            **TEXT,
            "vocab_size": -(-len(demo) // 64) * 64,
            "num_hidden_layers": text_layers,
            "eos_token_id": token("<|im_end|>"),
            "pad_token_id": token("<|endoftext|>"),
        },
        vision_config={
            **VISION,
            "depth": vision_layers,
            "deepstack_visual_indexes": list(range(min(3, vision_layers - 1))),
        },
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=False,
    )
    with torch.device("meta"):
        model = Qwen3VLMoeForConditionalGeneration(config)
    model = model.to(torch.bfloat16).to_empty(device="cpu")
    _fill(model, seed)
    model.generation_config = GenerationConfig(do_sample=False, eos_token_id=token("<|im_end|>"))
    return model.eval()


def _fill(model: torch.nn.Module, seed: int) -> None:
    """Random weights of a fitting scale. One block of noise is repeated: a billion draws would take minutes."""
    generator = torch.Generator().manual_seed(seed)
    # A length that divides no layer size, so that experts and rows do not come out alike.
    noise = torch.randn(9_999_991, generator=generator).to(torch.bfloat16)
    offset = 0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
                continue
            flat = parameter.view(-1)
            for start in range(0, flat.numel(), noise.numel()):
                piece = flat[start : start + noise.numel()]
                piece.copy_(noise.roll(offset)[: piece.numel()])
            flat.mul_(parameter.shape[-1] ** -0.5)
            offset += 7919


def save_checkpoint(
    folder: Path, text_layers: int, vision_layers: int, max_pixels: int = 1024 * 1024, shard_size: str = "1GB"
) -> None:
    """Write model and processor files as a hub checkpoint has them: shards, index, configuration."""
    _build_model(text_layers, vision_layers).save_pretrained(folder, max_shard_size=shard_size)
    processor = AutoProcessor.from_pretrained(DEMO_FOLDER)
    processor.image_processor.size = {"shortest_edge": 32 * 32, "longest_edge": max_pixels}
    processor.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--text-layers", type=int, default=4)
    parser.add_argument("--vision-layers", type=int, default=2)
    options = parser.parse_args()
    shutil.rmtree(options.folder, ignore_errors=True)
    save_checkpoint(options.folder, options.text_layers, options.vision_layers)
    print(f"Wrote {sum(file.stat().st_size for file in options.folder.iterdir()) / 2**30:.2f} GiB.")


if __name__ == "__main__":
    main()
