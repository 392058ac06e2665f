"""The look of the page: one calm theme in light and dark, from the visitor's own fonts."""

from __future__ import annotations

from pathlib import Path

from gradio.themes.base import Base
from gradio.themes.utils import colors, sizes

HERE = Path(__file__).resolve().parent
STYLE = HERE / "style.css"
SCRIPT = HERE / "page.js"
ICON = HERE / "icon.svg"

SANS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif")
MONO = ("ui-monospace", "SF Mono", "Menlo", "Consolas", "Noto Sans Mono", "monospace")
ACCENT, ACCENT_DARK = "#0f766e", "#2dd4bf"


class Calm(Base):
    """Neutral greys and one accent, which stands for the compressed side all over the page."""

    def __init__(self) -> None:
        super().__init__(
            primary_hue=colors.teal,
            secondary_hue=colors.teal,
            neutral_hue=colors.slate,
            radius_size=sizes.radius_md,
            spacing_size=sizes.spacing_md,
            text_size=sizes.text_md,
            font=SANS,
            font_mono=MONO,
        )
        self.name = "calm"
        card, card_dark = "#ffffff", "#171b21"
        line, line_dark = "#dfe3e8", "#2b323b"
        text, text_dark = "#1b2027", "#e7eaee"
        soft, soft_dark = "#566070", "#a3adba"
        self.set(
            body_background_fill="#f4f6f8",
            body_background_fill_dark="#0e1115",
            body_text_color=text,
            body_text_color_dark=text_dark,
            body_text_color_subdued=soft,
            body_text_color_subdued_dark=soft_dark,
            background_fill_primary=card,
            background_fill_primary_dark=card_dark,
            background_fill_secondary="#f8f9fb",
            background_fill_secondary_dark="#1d2229",
            border_color_primary=line,
            border_color_primary_dark=line_dark,
            border_color_accent=ACCENT,
            border_color_accent_dark=ACCENT_DARK,
            color_accent=ACCENT,
            color_accent_soft="#e3f3f1",
            color_accent_soft_dark="#12312f",
            block_background_fill="transparent",
            block_background_fill_dark="transparent",
            block_border_width="0px",
            block_border_width_dark="0px",
            block_shadow="none",
            block_shadow_dark="none",
            block_padding="0px",
            block_info_text_color=soft,
            block_info_text_color_dark=soft_dark,
            block_info_text_size="12px",
            block_label_background_fill="transparent",
            block_label_background_fill_dark="transparent",
            block_label_border_width="0px",
            block_label_border_width_dark="0px",
            block_label_text_color=soft,
            block_label_text_color_dark=soft_dark,
            block_label_shadow="none",
            block_title_text_color=text,
            block_title_text_color_dark=text_dark,
            block_title_text_size="13px",
            block_title_text_weight="600",
            layout_gap="14px",
            form_gap_width="0px",
            input_background_fill="#ffffff",
            input_background_fill_dark="#11151a",
            input_border_color="#c4cbd4",
            input_border_color_dark="#3a434e",
            input_border_color_focus=ACCENT,
            input_border_color_focus_dark=ACCENT_DARK,
            input_border_width="1px",
            input_shadow="none",
            input_shadow_focus="none",
            input_placeholder_color="#667080",
            input_placeholder_color_dark="#8b95a3",
            slider_color=ACCENT,
            slider_color_dark=ACCENT_DARK,
            loader_color=ACCENT,
            loader_color_dark=ACCENT_DARK,
            checkbox_background_color_selected=ACCENT,
            checkbox_background_color_selected_dark="#0f766e",
            checkbox_border_color_selected=ACCENT,
            checkbox_border_color_selected_dark=ACCENT_DARK,
            checkbox_label_background_fill="transparent",
            checkbox_label_background_fill_dark="transparent",
            checkbox_label_background_fill_hover="transparent",
            checkbox_label_background_fill_hover_dark="transparent",
            checkbox_label_background_fill_selected="transparent",
            checkbox_label_background_fill_selected_dark="transparent",
            checkbox_label_text_color_selected=text,
            checkbox_label_text_color_selected_dark=text_dark,
            checkbox_background_color_dark="#11151a",
            checkbox_label_border_width="0px",
            checkbox_label_border_width_dark="0px",
            checkbox_label_shadow="none",
            checkbox_label_shadow_dark="none",
            checkbox_label_padding="2px 0px",
            checkbox_label_text_size="13px",
            button_primary_background_fill=ACCENT,
            button_primary_background_fill_dark="#0f766e",
            button_primary_background_fill_hover="#115e59",
            button_primary_background_fill_hover_dark="#13877e",
            button_primary_text_color="#ffffff",
            button_primary_text_color_dark="#ffffff",
            button_primary_border_color=ACCENT,
            button_primary_border_color_dark="#0f766e",
            button_secondary_background_fill="#ffffff",
            button_secondary_background_fill_dark="#1d2229",
            button_secondary_background_fill_hover="#eef1f4",
            button_secondary_background_fill_hover_dark="#262d36",
            button_secondary_border_color="#c4cbd4",
            button_secondary_border_color_dark="#3a434e",
            button_secondary_text_color=text,
            button_secondary_text_color_dark=text_dark,
            button_border_width="1px",
            button_large_padding="9px 16px",
            button_large_text_size="14px",
            button_large_text_weight="600",
            button_small_padding="6px 10px",
            button_small_text_size="13px",
            button_small_text_weight="500",
            button_transform_hover="none",
            button_transform_active="none",
        )
