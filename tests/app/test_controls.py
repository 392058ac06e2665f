"""Switches become a configuration and back; there is no switch that changes nothing."""

from __future__ import annotations

import pytest

from app import controls
from app.controls import Control, make_controls, to_config, to_values
from engines import experts, pruning, vision
from engines.config import CompressionConfig
from engines.experts.calibration import Calibration
from engines.results import Capability
from tests.app import fake

METHODS = {
    "pruning": pruning.describe_methods(),
    "vision": vision.describe_methods(),
    "experts": experts.describe_methods(),
}
CONTROLS = make_controls(fake.capabilities(), METHODS)
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
        values[CONTROLS.index(next(c for c in CONTROLS if c.path == (control.path[0], "method")))] = control.method
    before = to_config(CONTROLS, values)
    values[index] = other_value(control, values[index])
    after = to_config(CONTROLS, values)
    assert after != before
    assert after.fingerprint() != before.fingerprint()
    assert to_values(CONTROLS, after) == values
    pruning.create(after.pruning.method, after.pruning.options)
    if control.path[-1] not in ("lower_bound", "upper_bound"):  # their other value lies beyond each other
        experts.create(after.experts.method, after.experts.options)


def test_controls_hold_every_setting_once() -> None:
    settings = {(section, name) for section, items in CompressionConfig().to_dict().items() for name in items}
    paths = [control.path for control in CONTROLS if not control.method]
    assert set(paths) == {path for path in settings if path[1] != controls.OPTIONS}
    assert len(paths) == len(set(paths))
    offered = {(control.path[0], control.method, control.path[-1]) for control in CONTROLS if control.method}
    assert offered == {
        (section, method.name, parameter[0])
        for section, methods in METHODS.items()
        for method in methods
        for parameter in method.parameters
    }
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


def test_scope_and_merging_are_named_where_they_do_something() -> None:
    chosen = ["pruning.scope=item", "pruning.merge=true"]
    assert controls.summary(CompressionConfig().with_settings(chosen), CONTROLS) == []
    words = controls.summary(CompressionConfig().with_settings([*chosen, "pruning.keep_ratio=0.5"]), CONTROLS)
    assert words[2:] == ["one budget for each item", "merges what it drops"]


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
    made = make_controls(fake.capabilities(own_top_k=None, experts=None), METHODS)
    of_experts = [control for control in made if control.path[0] == "experts"]
    assert {control.why_not for control in of_experts} == {"This model has no experts."}
    assert to_config(made, to_values(made, CompressionConfig.full())).experts == CompressionConfig.full().experts


def test_what_cannot_be_chosen_is_left_out_with_the_reason() -> None:
    made = make_controls(
        fake.capabilities(
            precisions=(Capability("fp32", True), Capability("int8", False, "no kernel here.")),
            pruning=(Capability("mmr", False, "too slow here."),),
        ),
        METHODS,
    )
    vision = next(control for control in made if control.path == ("precision", "vision"))
    assert "int8" not in [value for _, value in vision.choices]
    assert "int8 is not available: no kernel here." in vision.help
    method = next(control for control in made if control.path == ("pruning", "method"))
    assert "mmr" not in [value for _, value in method.choices]
    assert "too slow here." in method.help
    assert method.default != "mmr"


def test_summary_names_each_part_whose_precision_differs() -> None:
    config = CompressionConfig().with_settings(["precision.experts=int8", "experts.top_k=2", "modality.video=false"])
    assert controls.summary(config, CONTROLS) == ["2 experts per token", "experts int8", "no videos"]
    skipping = CompressionConfig().with_settings(["experts.method=alignment", "experts.renormalise=false"])
    assert controls.summary(skipping, CONTROLS) == ["skips experts: Alignment confidence", "weights not renormalised"]
    whole = CompressionConfig().with_settings(["precision.all=bf16"])
    assert controls.summary(whole, CONTROLS) == ["bf16 throughout"]


def test_methods_of_one_name_in_two_groups_keep_their_options_apart() -> None:
    """`random` prunes tokens and skips experts."""
    both = CompressionConfig().with_settings(["pruning.method=random", "experts.method=random"])
    values = to_values(CONTROLS, both)
    values[next(i for i, c in enumerate(CONTROLS) if c.name == "experts.options.random.skip")] = 0.25
    config = to_config(CONTROLS, values)
    assert config.experts.options == {"skip": 0.25}
    assert config.pruning.options == {}


def test_sliders_start_where_the_checkpoint_was_calibrated() -> None:
    thresholds = {"visual_threshold": 0.123, "text_threshold": 0.045}
    found = Calibration("0" * 64, (1.0, 1.0), {"modality": thresholds}, 0.5, 0.5, 0.01, 25)
    made = make_controls(fake.capabilities(), {**METHODS, "experts": experts.describe_methods(found)})
    own = {control.path[-1]: control.default for control in made if control.method == "modality"}
    assert own == {**thresholds, "keep_best": True}
    config = to_config(made, to_values(made, CompressionConfig().with_settings(["experts.method=modality"])))
    assert config.experts.options == {}, "left to the engine, which has the same calibration"
