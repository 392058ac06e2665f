"""Tiny random checkpoints of every supported family, written in the real format with the demo's tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoProcessor,
    GenerationConfig,
    Qwen3_5MoeConfig,
    Qwen3_5MoeForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
)

from engines.checkpoint import DEMO_FOLDER

FAMILIES = ("qwen3_vl_moe", "qwen3_vl", "qwen3_5_moe")

_TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    # Large enough that random weights give answers that differ from prompt to prompt.
    "initializer_range": 0.2,
}
_MOE = {"num_experts": 8, "num_experts_per_tok": 4, "moe_intermediate_size": 32}
_VISION = {
    "depth": 3,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_heads": 4,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 64,
    "num_position_embeddings": 64,
    "initializer_range": 0.2,
}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_interleaved": True}


def write_tiny_checkpoint(family: str, folder: Path) -> Path:
    """Write a checkpoint of `family` with fixed random weights to `folder`."""
    processor = AutoProcessor.from_pretrained(DEMO_FOLDER)
    tokenizer = processor.tokenizer
    token = tokenizer.convert_tokens_to_ids
    ends = {"eos_token_id": token("<|im_end|>"), "pad_token_id": token("<|endoftext|>")}
    text = {**_TEXT, **ends, "vocab_size": len(tokenizer)}
    common = {
        "image_token_id": token("<|image_pad|>"),
        "video_token_id": token("<|video_pad|>"),
        "vision_start_token_id": token("<|vision_start|>"),
        "vision_end_token_id": token("<|vision_end|>"),
        "tie_word_embeddings": True,
    }
    deepstack = {**_VISION, "deepstack_visual_indexes": [0, 1]}
    full_rope = {**_ROPE, "mrope_section": [6, 5, 5]}
    torch.manual_seed(0)
    model: Any
    if family == "qwen3_vl_moe":
        text |= {**_MOE, "num_hidden_layers": 3, "rope_parameters": full_rope}
        model = Qwen3VLMoeForConditionalGeneration(
            Qwen3VLMoeConfig(text_config=text, vision_config=deepstack, **common)
        )
    elif family == "qwen3_vl":
        text |= {"num_hidden_layers": 3, "rope_parameters": full_rope}
        model = Qwen3VLForConditionalGeneration(Qwen3VLConfig(text_config=text, vision_config=deepstack, **common))
    elif family == "qwen3_5_moe":
        text |= {
            **_MOE,
            "num_hidden_layers": 4,
            "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "shared_expert_intermediate_size": 32,
            "rope_parameters": {**_ROPE, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.25},
        }
        model = Qwen3_5MoeForConditionalGeneration(Qwen3_5MoeConfig(text_config=text, vision_config=_VISION, **common))
    else:
        raise ValueError(f"{family!r} is none of {FAMILIES}.")
    model.generation_config = GenerationConfig(do_sample=False, **ends)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder
