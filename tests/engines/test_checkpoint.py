"""Loading: the real format, every family by structure, and one sentence for what cannot be loaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from PIL import Image
from safetensors.torch import load_file, save_file

from benchmarks.shape_true import save_checkpoint
from engines.checkpoint import CheckpointError, load_checkpoint, pick_device
from engines.config import CompressionConfig, SamplingConfig
from engines.engine import Engine
from engines.results import RunRequest


def test_families_are_found_by_structure(engines: dict[str, Engine]) -> None:
    found = {
        family: (
            engine.capabilities().experts,
            engine.capabilities().own_top_k,
            engine.checkpoint.structure.deepstack_layers,
        )
        for family, engine in engines.items()
    }
    assert found == {"qwen3_vl_moe": (8, 4, 2), "qwen3_vl": (None, None, 2), "qwen3_5_moe": (8, 4, 0)}
    assert all(engine.checkpoint.family == family for family, engine in engines.items())


def test_visitors_are_not_told_where_a_folder_lies(engines: dict[str, Engine]) -> None:
    for family, engine in engines.items():
        assert engine.capabilities().model.startswith(f"{family}, ")


def test_capabilities_say_why_not(engines: dict[str, Engine]) -> None:
    for engine in engines.values():
        for capability in engine.capabilities().all():
            assert capability.available or capability.reason.endswith(".")


def test_digest_tells_checkpoints_apart(
    engines: dict[str, Engine], tiny_folders: dict[str, Path], tmp_path: Path
) -> None:
    digests = {engine.checkpoint.digest for engine in engines.values()}
    assert len(digests) == 3
    copy = tmp_path / "copy"
    shutil.copytree(tiny_folders["qwen3_vl"], copy)
    assert load_checkpoint(str(copy), "cpu", "fp32").digest == engines["qwen3_vl"].checkpoint.digest
    weights = copy / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert load_checkpoint(str(copy), "cpu", "fp32").digest != engines["qwen3_vl"].checkpoint.digest


def test_shape_true_checkpoint_in_the_real_format(tmp_path: Path) -> None:
    """Two layers at the sizes of Qwen3-VL-30B-A3B, sharded with an index, in bf16: loads and runs."""
    folder = tmp_path / "shape-true"
    save_checkpoint(folder, text_layers=2, vision_layers=2, shard_size="900MB")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) >= 3
    assert not (folder / "model.safetensors").exists()
    engine = Engine(load_checkpoint(str(folder), "cpu", "auto"))
    assert engine.capabilities().experts == 128
    assert engine.capabilities().own_top_k == 8
    assert engine.checkpoint.structure.moe_layers[0].experts.gate_up_proj.shape == (128, 2 * 768, 2048)
    picture = tmp_path / "noise.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (256, 320, 3), dtype=np.uint8)).save(picture)
    request = RunRequest("What is this?", (picture,), sampling=SamplingConfig(max_new_tokens=2), warm_up=False)
    full = engine.answer(request, CompressionConfig.full())
    assert full.visual_tokens == 80
    assert len(full.tokens) == 2
    pruned = engine.answer(request, CompressionConfig.full().with_settings(["pruning.keep_ratio=0.25"]))
    assert pruned.visual_tokens == 20
    shutil.rmtree(folder)


def test_missing_and_broken_checkpoints_get_a_sentence(tiny_folders: dict[str, Path], tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(CheckpointError, match=r"holds no config\.json"):
        load_checkpoint(str(empty))
    with pytest.raises(CheckpointError, match="There is no checkpoint folder /no/such/folder"):
        load_checkpoint("/no/such/folder")
    no_weights = tmp_path / "no-weights"
    shutil.copytree(tiny_folders["qwen3_vl"], no_weights, ignore=shutil.ignore_patterns("*.safetensors"))
    with pytest.raises(CheckpointError, match=r"holds no \.safetensors weights"):
        load_checkpoint(str(no_weights))
    bad_config = tmp_path / "bad-config"
    shutil.copytree(tiny_folders["qwen3_vl"], bad_config)
    (bad_config / "config.json").write_text('{"model_type": "no_such_model"}')
    with pytest.raises(CheckpointError, match="could not be read"):
        load_checkpoint(str(bad_config))
    cut = tmp_path / "cut"
    shutil.copytree(tiny_folders["qwen3_vl"], cut)
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="could not be loaded"):
        load_checkpoint(str(cut))


def test_a_checkpoint_with_a_tensor_missing_is_refused(tiny_folders: dict[str, Path], tmp_path: Path) -> None:
    """transformers would fill it with random numbers and go on."""
    folder = tmp_path / "hole"
    shutil.copytree(tiny_folders["qwen3_vl"], folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.visual.merger.linear_fc1.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"lacks 1 tensor\(s\).*merger\.linear_fc1\.weight"):
        load_checkpoint(str(folder), "cpu", "fp32")


def test_a_model_that_does_not_fit_is_refused_before_loading(
    tiny_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=100_000))
    with pytest.raises(CheckpointError, match=r"has 0\.0 GiB free; use a smaller checkpoint"):
        load_checkpoint(str(tiny_folders["qwen3_vl_moe"]), "cpu", "auto")


def test_a_model_of_another_kind_gets_a_sentence(tmp_path: Path) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    folder = tmp_path / "text-only"
    config = Qwen3Config(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1,
        head_dim=16, vocab_size=32,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    with pytest.raises(CheckpointError):
        load_checkpoint(str(folder))


@pytest.mark.parametrize(
    "device", ["cuda:99", "mps" if pick_device("auto").type != "mps" else "cuda", "gpu", "xla", ""]
)
def test_wrong_devices_get_a_sentence(device: str) -> None:
    with pytest.raises(CheckpointError, match="use auto"):
        pick_device(device)


def test_unknown_dtype_gets_a_sentence(tiny_folders: dict[str, Path]) -> None:
    with pytest.raises(CheckpointError, match="'int4' is not known; use auto, fp32, bf16, fp16"):
        load_checkpoint(str(tiny_folders["qwen3_vl"]), "cpu", "int4")


@pytest.mark.parametrize("method", ["awq", "gptq", "compressed-tensors"])
def test_a_quantised_checkpoint_without_its_kernels_says_so(
    tiny_folders: dict[str, Path], tmp_path: Path, method: str
) -> None:
    folder = tmp_path / "quantised"
    shutil.copytree(tiny_folders["qwen3_vl"], folder)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": method, "bits": 4, "group_size": 32, "config_groups": {}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=rf"could not be loaded: .* quantised already \({method}\)"):
        load_checkpoint(str(folder), "cpu", "fp32")
