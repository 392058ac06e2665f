"""What panels share whose button measures something on its own: a place in line, a way out, and what to measure on."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr

from app.observed import WorkbenchEngine
from app.panels.examples import read_examples
from app.session import Session, Tickets
from app.turnstile import Turnstile
from engines.config import CompressionConfig
from engines.media import MediaLimits
from engines.results import RunRequest

NO_SAMPLE = "There is no request and no sample to measure with; ask a question first."
# Measurements of one kind under way or in line at a time; each keeps a thread waiting.
MOST_AT_ONCE = 8


class OnDemandPanel:
    """Draw the buttons, then `connect_buttons`; `work` is a generator of updates that takes turns at the engine."""

    engine: WorkbenchEngine
    turnstile: Turnstile
    limits: MediaLimits

    def __init__(self, session: gr.State, samples: Path) -> None:
        self.session, self.samples = session, samples
        self.tickets = Tickets()

    def connect_buttons(
        self, start: gr.Button, stop: gr.Button, work: Any, outputs: Any, name: str, inputs: Any = None
    ) -> None:
        """`work` is given the session, or `inputs` where it wants more."""
        start.click(
            work, inputs or self.session, outputs,
            concurrency_id=name, concurrency_limit=MOST_AT_ONCE, show_progress="hidden", api_visibility="private",
        )  # fmt: skip
        stop.click(self.end, None, stop, queue=False, show_progress="hidden", api_visibility="private")

    def end(self, request: gr.Request) -> Any:
        """Tell the measurement to end; it then shows what it has."""
        self.tickets.stop(str(request.session_hash))
        return gr.update(interactive=False)

    def closed(self, visitor: str) -> None:
        self.tickets.stop(visitor)

    def asked(self, session: Session) -> tuple[RunRequest, CompressionConfig] | None:
        """The last request with its compressed settings, or a sample with everything off; None if there is neither."""
        if session.asked is not None:
            request, config = session.asked
            return replace(request, cancel=threading.Event()), config
        examples = read_examples(self.samples)
        if not examples:
            return None
        cancel = threading.Event()
        sample = RunRequest(examples[0].question, (examples[0].path,), limits=self.limits, cancel=cancel)
        return sample, CompressionConfig.full()
