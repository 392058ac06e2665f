"""One HTML file with everything in it: style, figures, and the library that draws them. It asks the network nothing."""

from __future__ import annotations

import base64
import gzip
import json
from functools import cache

import plotly.graph_objects as go
import plotly.offline

from app.theme import STYLE
from app.words import escape
from engines.signing import HTML_HEAD

# The page's own style sheet is used; these are the colours that Gradio's theme gives it there.
_LOOK = """
:root { --color-accent: #0f766e; --color-accent-soft: #dff3f0; --body-text-color: #1c2127;
  --body-text-color-subdued: #57606a; --background-fill-primary: #ffffff; --background-fill-secondary: #f6f7f9;
  --border-color-primary: #dfe3e8; --input-border-color: #c4cbd4; }
:root.dark { --color-accent-soft: #12332f; --body-text-color: #e6e9ed; --body-text-color-subdued: #9aa4b0;
  --background-fill-primary: #171b20; --background-fill-secondary: #11151a; --border-color-primary: #2c333c;
  --input-border-color: #3a434e; color-scheme: dark; }
body { margin: 0; background: var(--background-fill-secondary); color: var(--body-text-color);
  font: 14px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
.gradio-container { box-sizing: border-box; max-width: 1080px !important; padding: 20px 24px 32px !important; }
.pair { margin-top: 10px; } .card { margin-top: 16px; overflow-wrap: anywhere; }
h1 { font-size: 21px; } h2 { font-size: 15px; margin-bottom: 8px; } h3 { font-size: 13px; margin: 14px 0 6px; }
details { margin-top: 8px; } summary { cursor: pointer; color: var(--body-text-color-subdued); font-size: 13px; }
.figures td.code, code { font-family: ui-monospace, monospace; font-size: 12.5px; overflow-wrap: anywhere; }
.figures td.text { text-align: left; white-space: normal; min-width: 160px; }
.answer .text { max-height: none; } .scroll { max-height: 520px; }
.thumb { max-width: 160px; max-height: 120px; border-radius: 6px; display: block; }
@media print { .scroll { max-height: none; } body { background: #fff; } }
"""
# Unpacks the library, which is a quarter of its size so, and draws each figure where it belongs.
_DRAW = """
if (matchMedia("(prefers-color-scheme: dark)").matches) document.documentElement.classList.add("dark");
(async () => {
  const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (sign) => sign.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const library = document.createElement("script");
  library.textContent = await new Response(stream).text();
  document.head.append(library);
  for (const box of document.querySelectorAll(".plot")) {
    const figure = JSON.parse(box.querySelector("script").textContent);
    box.textContent = "";
    const layout = {...figure.layout, autosize: true};
    await Plotly.newPlot(box, figure.data, layout, {responsive: true, displayModeBar: false});
  }
  document.documentElement.dataset.drawn = "true";
})();
"""
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


def document(title: str, body: str) -> bytes:
    """The file, unsigned. `title` is plain text, `body` HTML."""
    return HTML_HEAD + (
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"><title>{escape(title)}</title>'
        f"<style>{STYLE.read_text(encoding='utf-8')}{_LOOK}</style></head>"
        f'<body><div class="gradio-container prose"><main>{body}</main></div>'
        f'<script type="text/plain" id="plotly">{_library()}</script><script>{_DRAW}</script></body></html>\n'
    ).encode("utf-8", "replace")


def card(title: str, body: str, name: str) -> str:
    """A section. `body` is HTML."""
    return f'<section class="card" id="{name}"><h2>{escape(title)}</h2>{body}</section>'


def plot(figure: go.Figure, table: str) -> str:
    """A figure and, folded, its table."""
    height = int(figure.layout.height)
    # No text may end the element that holds it.
    data = json.dumps(json.loads(figure.to_json()), separators=(",", ":")).replace("<", "\\u003c")
    return (
        f'<div class="plot" style="height:{height}px"><script type="application/json">{data}</script></div>'
        f"<details><summary>As a table</summary>{table}</details>"
    )


def facts(pairs: dict[str, str]) -> str:
    """A list of terms. Both are plain text."""
    return (
        '<dl class="facts">' + "".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in pairs.items()) + "</dl>"
    )


@cache
def _library() -> str:
    packed = gzip.compress(plotly.offline.get_plotlyjs().encode(), mtime=0)
    return base64.b64encode(packed).decode("ascii")
