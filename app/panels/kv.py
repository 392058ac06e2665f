"""What the compressed run held of its KV cache, layer by layer."""

from __future__ import annotations

from typing import Any

import gradio as gr

from app.session import Session
from app.words import count, megabytes, percent
from engines.reports import KVLayer, KVReport

EMPTY = '<p class="empty">After a run with a KV setting: how many tokens the cache holds, and in how many bytes.</p>'
PLAIN = '<p class="empty">The compressed run kept its KV cache plain: every KV setting is off.</p>'


class KVPanel:
    """`update` fills it after a run."""

    def __init__(self) -> None:
        with gr.Column(elem_id="kv", elem_classes="card"):
            gr.HTML("<h2>What the KV cache held</h2>", elem_classes="card-title")
            self.text = gr.HTML(EMPTY, elem_id="kv-text")
            with gr.Accordion("Layer by layer", open=False, visible=False, elem_classes="inner") as self.fold:
                self.table = gr.HTML(elem_id="kv-table")
        self.outputs: list[gr.blocks.Block] = [self.text, self.fold, self.table]

    @staticmethod
    def update(session: Session) -> list[Any]:
        """All outputs for a finished run."""
        result = session.results.get("compressed")
        report = result.kv_report if result is not None else None
        if report is None:
            return [EMPTY if result is None else PLAIN, gr.update(visible=False), ""]
        return [kv_html(report), gr.update(visible=True), kv_table(report)]


def kv_html(report: KVReport) -> str:
    """Bytes and tokens of all layers together."""
    layers = report.layers
    held, seen = sum(layer.tokens_held for layer in layers), sum(layer.tokens_seen for layer in layers)
    visual, all_visual = sum(layer.visual_held for layer in layers), sum(layer.visual_seen for layer in layers)
    form = f"{report.bits} bits a value" if report.bits else "the model's own number format"
    said = (
        f'<p id="kv-bytes" data-bytes="{report.bytes}" data-plain="{report.plain_bytes}"><b>'
        f"{megabytes(report.bytes)} instead of {megabytes(report.plain_bytes)} ({percent(report.share)})</b>, in blocks"
        f" of {report.block_tokens} tokens, {form}. Held at the end: {count(held)} of {count(seen)} tokens over"
        f" {len(layers)} layers ({percent(held / seen if seen else None)}), among them {count(visual)} of"
        f" {count(all_visual)} visual ones; {count(sum(layer.blocks_released for layer in layers))} blocks were"
        " released.</p>"
    )
    if report.zero_share is not None:
        said += f"<p>{percent(report.zero_share)} of the values in whole blocks are exactly 0.</p>"
    return said + (
        '<p class="hint">Bytes are counted from the tensors: codes, scales, zero points, and the first and newest'
        " tokens in full. The plain cache would hold every token in the model's own number format.</p>"
    )


def kv_table(report: KVReport) -> str:
    columns = ("Tokens held", "Tokens dropped", "Visual held", "Blocks", "Released", "Bytes", "Plain", "Share")
    head = "".join(f'<th scope="col">{column}</th>' for column in columns)
    return (
        f'<div class="scroll"><table class="figures"><thead><tr><th scope="col">Layer</th>{head}</tr></thead>'
        f"<tbody>{''.join(map(_row, report.layers))}</tbody></table></div>"
    )


def _row(layer: KVLayer) -> str:
    cells = [
        count(layer.tokens_held),
        count(layer.tokens_dropped),
        f"{count(layer.visual_held)} of {count(layer.visual_seen)}",
        count(layer.blocks),
        count(layer.blocks_released),
        megabytes(layer.bytes),
        megabytes(layer.plain_bytes),
        percent(layer.bytes / layer.plain_bytes if layer.plain_bytes else None),
    ]
    return f'<tr><th scope="row">{layer.layer}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
