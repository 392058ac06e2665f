"""What the demo checkpoint consists of: configuration, tokenizer, processor, and how they are written to a
folder.

    python -m engines.demo.build OUT      writes a complete checkpoint with random weights

The architecture is transformers' own Qwen3-VL-MoE, only small. Nothing here subclasses or patches it.
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path

import torch
from transformers import (
    GenerationConfig,
    Qwen2Tokenizer,
    Qwen2VLImageProcessor,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

from engines.demo.labels import MERGE, PATCH_PX, TEMPORAL
from engines.demo.tokenizer import CHAT_TEMPLATE, build_tokenizer

IMAGE_PIXELS = {
    "shortest_edge": 128 * 128,
    "longest_edge": 640 * 640,
}  # pixels of one image: 16 to 400 tokens
# Pixels of a whole clip, all frames together: from two small frames to 16 of 320 x 320 (800 tokens).
CLIP_PIXELS = {"shortest_edge": 2 * 128 * 128, "longest_edge": 16 * 320 * 320}


def demo_config(
    tokenizer: Qwen2Tokenizer,
    width: int = 192,
    text_layers: int = 5,
    vision_layers: int = 4,
    experts: int = 16,
    expert_width: int = 64,
) -> Qwen3VLMoeConfig:
    """The demo's configuration. `width` is the hidden size of both towers, a multiple of 96."""
    heads = width // 32
    token = tokenizer.convert_tokens_to_ids
    return Qwen3VLMoeConfig(
        text_config={
            "vocab_size": -(-len(tokenizer) // 64) * 64,
            "hidden_size": width,
            "intermediate_size": 2 * width,  # of a dense layer; every layer here has experts
            "num_hidden_layers": text_layers,
            "num_attention_heads": heads,
            "num_key_value_heads": heads // 2 if heads % 2 == 0 else heads // 3,
            "head_dim": 32,
            "num_experts": experts,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": expert_width,
            "decoder_sparse_step": 1,
            "max_position_embeddings": 32768,
            "initializer_range": 0.04,
            "router_aux_loss_coef": 0.01,
            "tie_word_embeddings": True,
            "eos_token_id": token("<|im_end|>"),
            "pad_token_id": token("<|endoftext|>"),
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 5_000_000.0,
                "mrope_interleaved": True,
                "mrope_section": [6, 5, 5],  # time, height, width: half of head_dim together
            },
        },
        vision_config={
            "depth": vision_layers,
            "hidden_size": width,
            "intermediate_size": 4 * width,
            "num_heads": heads,
            "patch_size": PATCH_PX,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": TEMPORAL,
            "out_hidden_size": width,
            "num_position_embeddings": 32 * 32,
            "deepstack_visual_indexes": [1, 2] if vision_layers > 2 else [0],
            "initializer_range": 0.04,
        },
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=True,
    )


def build_processor(tokenizer: Qwen2Tokenizer | None = None) -> Qwen3VLProcessor:
    """Transformers' processor of the family, with bounds on size that suit a small model."""
    patches = {"patch_size": PATCH_PX, "merge_size": MERGE, "temporal_patch_size": TEMPORAL}
    centred = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    return Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(size=dict(IMAGE_PIXELS), **patches, **centred),
        tokenizer=tokenizer or build_tokenizer(),
        video_processor=Qwen3VLVideoProcessor(
            size=dict(CLIP_PIXELS),
            min_frames=2,
            max_frames=32,
            fps=2,
            cap_pixels_per_frame=True,
            **patches,
            **centred,
        ),
        chat_template=CHAT_TEMPLATE,
    )


def build_model(tokenizer: Qwen2Tokenizer, seed: int = 0, **sizes: int) -> Qwen3VLMoeForConditionalGeneration:
    """The model with random weights, float32, the same for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3VLMoeForConditionalGeneration(demo_config(tokenizer, **sizes))


def save_checkpoint(model: Qwen3VLMoeForConditionalGeneration, processor: Qwen3VLProcessor, folder: Path) -> None:
    """Write weights (bfloat16), configuration and processor files in transformers' own format."""
    tokenizer = processor.tokenizer
    half = copy.deepcopy(model).to(torch.bfloat16)
    half.generation_config = GenerationConfig(
        do_sample=False,
        max_new_tokens=64,
        eos_token_id=[tokenizer.convert_tokens_to_ids(t) for t in ("<|im_end|>", "<|endoftext|>")],
        pad_token_id=tokenizer.pad_token_id,
    )
    half.save_pretrained(folder)
    processor.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a complete demo checkpoint with random weights.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    processor = build_processor()
    model = build_model(processor.tokenizer, arguments.seed)
    save_checkpoint(model, processor, arguments.out)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters in {arguments.out}")


if __name__ == "__main__":
    main()
