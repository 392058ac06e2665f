"""A button that hands the visitor a file made at that moment."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from app.panels.answers import wrong_html

# Gradio's own download button hands out what it held before the click.
_SAVE = """(file) => {
  if (!file || !file.url) return;
  const link = document.createElement("a");
  link.href = file.url;
  link.download = file.orig_name || "";
  document.body.append(link);
  link.click();
  link.remove();
}"""

Made = tuple[str, bytes]
"""Name of a file and what is in it."""


class Download:
    """`button` makes the file; `said` shows the sentence where that cannot be done."""

    def __init__(self, label: str, name: str, **options: Any) -> None:
        self.button = gr.Button(label, size="sm", elem_id=name, min_width=110, **options)
        self._file = gr.File(visible=False)

    def connect(self, make: Callable[..., Made], inputs: Sequence[Any], said: gr.HTML) -> None:
        """`make` is given the values of `inputs`; a ValueError of it is shown."""

        def made(*values: Any) -> list[Any]:
            try:
                name, content = make(*values)
            except ValueError as error:
                return [None, wrong_html(str(error))]
            with tempfile.TemporaryDirectory(prefix="workbench-") as folder:
                path = Path(folder) / name
                path.write_bytes(content)
                # Served from there, and deleted when it is old.
                return [self._file.move_resource_to_block_cache(path), ""]

        self.button.click(
            made, list(inputs), [self._file, said],
            concurrency_id="download", concurrency_limit=2, show_progress="minimal", show_progress_on=said,
            api_visibility="private",
        ).success(None, self._file, None, js=_SAVE, queue=False, api_visibility="private")  # fmt: skip
