"""The top of the page: what this is, and which model answers."""

from __future__ import annotations

import gradio as gr

from app.words import escape
from engines.results import Capabilities

TITLE = "Compression workbench"
LINE = "Ask once; the full and the compressed model answer side by side, and everything shown was measured in that run."
LOGO = (
    '<svg viewBox="0 0 32 32" width="32" height="32" aria-hidden="true"><rect class="logo-full" x="2" y="5"'
    ' width="11" height="22" rx="3"/><rect class="logo-small" x="18" y="13" width="12" height="14" rx="3"/></svg>'
)


def draw_header(capabilities: Capabilities) -> None:
    gr.HTML(header_html(capabilities), elem_id="header")


def header_html(capabilities: Capabilities) -> str:
    kind = "Demo model" if capabilities.is_demo else escape(capabilities.family)
    name = capabilities.model
    badge = (
        f'<div class="badge" id="model-badge"><span class="dot"></span><span><b>{escape(name)}</b>'
        f"<small>{kind} · {escape(capabilities.device)}</small></span></div>"
    )
    note = (
        '<p class="demo-note">This is a small demo model: it knows only generated scenes of coloured shapes, like'
        " those among the examples."
        " To load a real one: <code>python launch.py --model &lt;folder or hub id&gt;</code></p>"
        if capabilities.is_demo
        else ""
    )
    return (
        f'<div class="brand">{LOGO}<div class="name"><h1>{TITLE}</h1><p>{LINE}</p></div>{badge}</div>'
        f'<div class="notes">{note}{_device(capabilities)}</div>'
    )


def _device(capabilities: Capabilities) -> str:
    """What works here and what does not, with the reason, folded away."""
    lines = "".join(
        f'<li class="{"yes" if item.available else "no"}"><b>{escape(item.name)}</b> '
        f"{escape(item.detail if item.available else item.reason) or 'available'}</li>"
        for item in capabilities.all()
    )
    missing = sum(not item.available for item in capabilities.all())
    title = f"What this device can do ({missing} not available)" if missing else "What this device can do"
    return f'<details class="device"><summary>{title}</summary><ul>{lines}</ul></details>'
