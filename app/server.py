"""Page and endpoint in one server: one engine, one line for it, one count of all its runs."""

from __future__ import annotations

import os
import sys

import gradio as gr

from app import theme
from app.api.filestore import FileStore
from app.api.gate import SAFE_DEFAULT, Gate, is_loopback
from app.api.metrics import Metrics
from app.api.routes import Endpoint
from app.api.sources import Origin, Sources
from app.api.spans import make_spans
from app.observed import ObservedEngine, Watcher, WorkbenchEngine
from app.options import PageOptions
from app.turnstile import Turnstile
from app.workbench import Workbench, lay_out
from engines.media import MIB, MediaLimits

# How many may wait: visitors in the page's queue, and requests of the endpoint in the line for the engine.
QUEUE_SIZE = 16
SESSIONS = 200


def serve(
    engine: WorkbenchEngine,
    *,
    host: str,
    port: int,
    share: bool = False,
    auth: tuple[str, str] | list[tuple[str, str]] | None = None,
    max_upload_mb: int = 200,
    open_browser: bool = False,
    block: bool = True,
    model_name: str = "demo",
    gate: Gate | None = None,
    page_options: PageOptions | None = None,
    media_from: frozenset[Origin] = frozenset(),
) -> gr.Blocks:
    """Serve both; returns when the server ends, or at once with `block=False`.

    `model_name` is what the endpoint calls the model; without a `gate` the endpoint is off. `media_from` is where it
    may fetch media from; it fetches nothing from anywhere else.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    gate = gate or Gate(closed=SAFE_DEFAULT)
    limits = MediaLimits(max_bytes=max_upload_mb * MIB)
    # One tenant of several must not be able to fill the line.
    turnstile = Turnstile(QUEUE_SIZE, QUEUE_SIZE // 2 if len(set(gate.keys.values())) > 1 else None)
    watchers: list[Watcher] = []
    # Then whoever reaches the page is at this machine: one person, who may find in the caches all that is there.
    alone = is_loopback(host) and auth is None and not share
    workbench = Workbench(ObservedEngine(engine, watchers), limits, turnstile, alone=alone, options=page_options)
    metrics = Metrics(model_name, engine, workbench.waiting)
    spans = make_spans(model_name)
    watchers += [metrics, spans] if spans is not None else [metrics]
    sources = Sources(FileStore(), media_from)
    endpoint = Endpoint(workbench.engine, turnstile, limits, model_name, gate, metrics, spans, sources)

    page = lay_out(workbench)
    page.queue(max_size=QUEUE_SIZE, api_open=False)
    page.launch(
        server_name=host,
        server_port=port,
        share=share,
        auth=auth,
        inbrowser=open_browser,
        max_file_size=f"{max_upload_mb}mb",
        prevent_thread_lock=True,
        quiet=True,
        state_session_capacity=SESSIONS,
        show_error=True,
        ssr_mode=False,
        run_history=False,
        footer_links=[],
        theme=theme.Calm(),
        css_paths=theme.STYLE,
        js=theme.SCRIPT.read_text(encoding="utf-8"),
        favicon_path=theme.ICON,
        # Routes that the app has from the start stand before Gradio's own, which would swallow them.
        app_kwargs={"routes": endpoint.routes()},
    )
    print(f"The workbench is at {page.local_url} (Ctrl+C ends it).", file=sys.stderr, flush=True)
    if not gate.closed:
        print(f"Its endpoint is at {page.local_url}v1, {gate.describe()}.", file=sys.stderr, flush=True)
    if share:
        print(f"Anyone can reach it at {page.share_url}", file=sys.stderr, flush=True)
    if block:
        page.block_thread()
    return page
