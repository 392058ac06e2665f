"""Weights that do not fit the GPU: the map is as asked, the answers are the same, the page can say what lies where."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
import transformers

from engines import checkpoint as loading
from engines.config import CompressionConfig
from engines.device.placement import Capacity, device_map, movable, split
from engines.engine import Engine
from engines.results import EngineError
from engines.structure import Structure
from tests.checkpoints import FAMILIES
from tests.engines.test_off_is_identical import capture_logits, make_request

GPU = torch.device("cuda", 0)
FULL = CompressionConfig.full()
PLENTY = 1 << 40


def sizes(structure: Structure) -> tuple[int, list[int]]:
    """Bytes in fp32 of the model, and of what can be moved, layer by layer."""
    total = sum(parameter.nbytes for parameter in structure.model.parameters())
    return total, [sum(one.nbytes for one in module.parameters()) for _, module in movable(structure)]


def room_for(count: int) -> int:
    """Free bytes of which so many may hold weights."""
    return int(count / 0.9) + 16


# ---- the map ----


@pytest.mark.parametrize("family", FAMILIES)
def test_as_few_layers_as_possible_go_to_the_machines_memory_the_last_ones_first(
    engines: dict[str, Engine], family: str
) -> None:
    structure = engines[family].checkpoint.structure
    total, layers = sizes(structure)
    names = [name for name, _ in movable(structure)]
    assert len(names) == len(structure.language_model.layers)
    # One layer's weights are too many, and a layer on its way through needs room as well: two go.
    found = split(structure, 4, Capacity(room_for(total - layers[-1]), PLENTY), GPU)
    assert found is not None
    assert [name for name, place in found.items() if place == "cpu"] == names[-2:]
    assert {place for name, place in found.items() if name not in names[-2:]} == {GPU}
    for name, _ in structure.model.named_parameters():
        assert sum(name == key or name.startswith(f"{key}.") for key in found) == 1, name


def test_half_precision_needs_half_the_room(engines: dict[str, Engine]) -> None:
    structure = engines["qwen3_vl_moe"].checkpoint.structure
    total, layers = sizes(structure)
    room = Capacity(room_for((total - layers[-1]) // 2), PLENTY)
    in_fp32, in_bf16 = split(structure, 4, room, GPU), split(structure, 2, room, GPU)
    assert in_fp32 is None
    assert in_bf16 is not None
    assert list(in_bf16.values()).count("cpu") == 2


def test_no_map_where_there_is_no_room_either_way(engines: dict[str, Engine]) -> None:
    structure = engines["qwen3_vl_moe"].checkpoint.structure
    total, layers = sizes(structure)
    assert split(structure, 4, Capacity(room_for(total - sum(layers)), PLENTY), GPU) is None
    assert split(structure, 4, Capacity(room_for(total - layers[-1]), layers[-1]), GPU) is None


def map_of(folder: Path, monkeypatch: pytest.MonkeyPatch, capacity: Capacity, needed: int) -> Any:
    monkeypatch.setattr(loading, "capacity_of", lambda _device: capacity)
    config = transformers.AutoConfig.from_pretrained(folder)
    return loading._device_map("tiny", config, needed, torch.float32, GPU)


def test_what_fits_goes_whole_to_the_gpu_and_what_does_not_is_split_before_loading(
    tiny_folders: dict[str, Path], engines: dict[str, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_folders["qwen3_vl_moe"]
    total, layers = sizes(engines["qwen3_vl_moe"].checkpoint.structure)
    assert map_of(folder, monkeypatch, Capacity(room_for(total), PLENTY), total) == {"": GPU}
    found = map_of(folder, monkeypatch, Capacity(room_for(total - layers[-1]), PLENTY), total)
    assert list(found.values()).count("cpu") == 2


def test_one_memory_for_both_is_never_split(tiny_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a Jetson: moving weights from the memory to the same memory would make no room."""
    folder = tiny_folders["qwen3_vl_moe"]
    assert map_of(folder, monkeypatch, Capacity(1000, 1000, shared=True), 950) == {"": GPU}
    with pytest.raises(loading.CheckpointError, match=r"need .* and cuda:0 has 0\.0 GiB free; use a smaller"):
        map_of(folder, monkeypatch, Capacity(1000, 1000, shared=True), 1001)
    with pytest.raises(loading.CheckpointError, match=r"free, and the machine 0\.0 GiB; use a smaller checkpoint"):
        map_of(folder, monkeypatch, Capacity(1000, 1000), 10**7)


# ---- the same answers ----


def engine_around(engine: Engine, model: Any) -> Engine:
    """The engine of the same checkpoint with another copy of its weights."""
    return Engine(replace(engine.checkpoint, structure=Structure(model.eval())))


@pytest.fixture(scope="module")
def apart(engines: dict[str, Engine], tiny_folders: dict[str, Path]) -> dict[str, Engine]:
    """Engines whose last two layers' experts or MLPs are held by accelerate's hooks, as on a GPU with too little room:
    the CPU stands for both memories.
    """
    found = {}
    for family, folder in tiny_folders.items():
        model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
        for _, module in movable(Structure(model))[-2:]:
            accelerate.cpu_offload(module, execution_device=torch.device("cpu"))
        found[family] = engine_around(engines[family], model)
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_a_split_model_answers_the_same(
    engines: dict[str, Engine], apart: dict[str, Engine], media_files: dict[str, Path], family: str
) -> None:
    """Full and compressed, with whatever looks into the layers."""
    request = make_request(media_files, ["tall", "clip"], tokens=4)
    settings = ["pruning.keep_ratio=0.5", "vision.keep_ratio=0.5", "vision.after_layer=1"]
    if family != "qwen3_vl":
        settings += ["experts.method=random", "experts.options.skip=0.5"]
    if family != "qwen3_5_moe":
        settings += ["pruning.method=attention", "pruning.options.layer=2", "kv.bits=8", "cache.encoder=true"]
    for config in (FULL, FULL.with_settings(settings)):
        logits, tokens = capture_logits(engines[family], request, config)
        same, same_tokens = capture_logits(apart[family], request, config)
        assert torch.equal(same, logits)
        assert same_tokens == tokens


def test_nothing_is_left_on_the_device_after_a_run(apart: dict[str, Engine], media_files: dict[str, Path]) -> None:
    engine = apart["qwen3_vl_moe"]
    engine.answer(make_request(media_files, ["wide"], tokens=2), FULL)
    for _, module in movable(engine.checkpoint.structure)[-2:]:
        assert all(parameter.is_meta for parameter in module.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_every_byte_is_counted_where_it_lies(
    engines: dict[str, Engine], apart: dict[str, Engine], media_files: dict[str, Path], family: str
) -> None:
    request = make_request(media_files, ["wide"], tokens=1)
    whole, split_up = (one.answer(request, FULL).memory.weight_bytes for one in (engines[family], apart[family]))
    assert whole == split_up
    found = apart[family].placement()
    assert found.split
    assert "did not fit the GPU" in found.note
    assert not engines[family].placement().split
    assert sum(found.by_place.values()) == sum(engines[family].placement().by_place.values())


def test_other_precisions_are_refused_in_a_sentence_and_off_on_the_page(
    apart: dict[str, Engine], media_files: dict[str, Path]
) -> None:
    engine = apart["qwen3_vl_moe"]
    with pytest.raises(EngineError, match=r"precision\.vision=int8 is not available: These weights are split over GPU"):
        engine.answer(make_request(media_files, ["wide"]), FULL.with_settings(["precision.vision=int8"]))
    assert not any(item.available for item in engine.capabilities().precisions)


def test_parts_are_named_by_layers(engines: dict[str, Engine], apart: dict[str, Engine]) -> None:
    names = [part.part for part in apart["qwen3_vl_moe"].placement().parts]
    assert names == [
        "Vision tower", "Projector", "Language model, layers 1 to 3", "Experts, layers 1 to 3",
        "Embeddings, final norm and output head",
    ]  # fmt: skip
    dense = [part.part for part in engines["qwen3_vl"].placement().parts]
    assert not any(name.startswith("Experts") for name in dense)


def test_weights_on_a_disk_give_the_same_logits_and_are_shown_there(
    engines: dict[str, Engine], tiny_folders: dict[str, Path], media_files: dict[str, Path], tmp_path: Path
) -> None:
    """Through transformers' own loading by a device map of ours, with the two kinds of place that every machine has."""
    engine = engines["qwen3_vl_moe"]
    structure = engine.checkpoint.structure
    names = {name for name, _ in movable(structure)[-1:]}
    model = transformers.AutoModelForImageTextToText.from_pretrained(
        tiny_folders["qwen3_vl_moe"],
        dtype=torch.float32,
        device_map=device_map(structure.model, names, "cpu", "disk"),
        offload_folder=tmp_path,
    )
    other = engine_around(engine, model)
    assert other.checkpoint.structure.offloaded
    request = make_request(media_files, ["wide", "clip"], tokens=4)
    logits, tokens = capture_logits(engine, request, FULL)
    same, same_tokens = capture_logits(other, request, FULL)
    assert torch.equal(same, logits)
    assert same_tokens == tokens
    places = {(part.part, part.place): part.bytes for part in other.placement().parts}
    _, layers = sizes(structure)
    assert places["Experts, layer 3", "disk"] == layers[-1]
    assert places["Experts, layers 1 to 2", "CPU memory"] == sum(layers[:2])
    assert sum(places.values()) == sum(engine.placement().by_place.values())
