"""Switches become a configuration and back; there is no switch that changes nothing."""

from __future__ import annotations

import pytest

from app import controls
from app.controls import Control, make_controls, to_config, to_values
from engines.config import CompressionConfig
from engines.pruning import create, describe_methods
from engines.results import Capability
from tests.app import fake

CONTROLS = make_controls(fake.capabilities(), describe_methods())
FULL = to_values(CONTROLS, CompressionConfig.full())


def other_value(control: Control, value: object) -> object:
    """A value that the control can take besides this one."""
    if control.kind == "switch":
        return not value
    if control.kind == "choice":
        return next(choice for _, choice in control.choices if choice != value)
    return control.low if value != control.low else control.low + control.step


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name)
def test_every_control_changes_the_configuration_and_comes_back(control: Control) -> None:
    index = CONTROLS.index(control)
    values = list(FULL)
    if control.method:
        values[CONTROLS.index(next(c for c in CONTROLS if c.path == controls.METHOD))] = control.method
    before = to_config(CONTROLS, values)
    values[index] = other_value(control, values[index])
    after = to_config(CONTROLS, values)
    assert after != before
    assert after.fingerprint() != before.fingerprint()
    assert to_values(CONTROLS, after) == values
    create(after.pruning.method, after.pruning.options)


def test_controls_hold_every_setting_once() -> None:
    settings = {(section, name) for section, items in CompressionConfig().to_dict().items() for name in items}
    paths = [control.path for control in CONTROLS if not control.method]
    assert set(paths) == settings - {controls.OPTIONS}
    assert len(paths) == len(set(paths))
    offered = {(control.method, control.path[-1]) for control in CONTROLS if control.method}
    assert offered == {(method.name, p[0]) for method in describe_methods() for p in method.parameters}
    assert all(control.help for control in CONTROLS)


def test_all_off_is_the_full_model() -> None:
    config = to_config(CONTROLS, FULL)
    assert config == CompressionConfig.full()
    assert controls.summary(config, CONTROLS) == []


def test_recommended_halves_the_visual_tokens_and_uses_the_cache() -> None:
    config = to_config(CONTROLS, to_values(CONTROLS, controls.recommended()))
    assert (config.pruning.method, config.pruning.keep_ratio, config.cache.encoder) == ("mmr", 0.5, True)
    words = controls.summary(config, CONTROLS)
    assert words == ["keeps 50 % of visual tokens", "Maximal marginal relevance", "encoder cache"]


def test_a_slider_never_reaches_an_excluded_bound() -> None:
    keep = next(control for control in CONTROLS if control.path == ("pruning", "keep_ratio"))
    assert keep.low == pytest.approx(0.05)


def test_an_inexact_step_is_rounded_and_an_empty_field_has_a_sentence() -> None:
    index = next(i for i, control in enumerate(CONTROLS) if control.path == ("pruning", "keep_ratio"))
    values = list(FULL)
    values[index] = 0.15000000000000002
    assert to_config(CONTROLS, values).pruning.keep_ratio == 0.15
    values[index] = None
    with pytest.raises(ValueError, match="Keep ratio is empty"):
        to_config(CONTROLS, values)


def test_a_model_without_experts_says_so() -> None:
    made = make_controls(fake.capabilities(own_top_k=None, experts=None), describe_methods())
    top_k = next(control for control in made if control.path == controls.TOP_K)
    assert top_k.why_not == "This model has no experts."
    assert to_config(made, to_values(made, CompressionConfig.full())).experts.top_k is None


def test_what_cannot_be_chosen_is_left_out_with_the_reason() -> None:
    made = make_controls(
        fake.capabilities(
            precisions=(Capability("fp32", True), Capability("int8", False, "no kernel here.")),
            pruning=(Capability("mmr", False, "too slow here."),),
        ),
        describe_methods(),
    )
    vision = next(control for control in made if control.path == ("precision", "vision"))
    assert "int8" not in [value for _, value in vision.choices]
    assert "int8 is not available: no kernel here." in vision.help
    method = next(control for control in made if control.path == controls.METHOD)
    assert "mmr" not in [value for _, value in method.choices]
    assert "too slow here." in method.help
    assert method.default != "mmr"


def test_summary_names_each_part_whose_precision_differs() -> None:
    config = CompressionConfig().with_settings(["precision.experts=int8", "experts.top_k=2", "modality.video=false"])
    assert controls.summary(config, CONTROLS) == ["2 experts per token", "experts int8", "no videos"]
    whole = CompressionConfig().with_settings(["precision.all=bf16"])
    assert controls.summary(whole, CONTROLS) == ["bf16 throughout"]
