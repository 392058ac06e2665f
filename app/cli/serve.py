"""The page, and the endpoint beside it."""

from __future__ import annotations

import argparse
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from app.cli.common import UsageError, add_settings_file, add_signing_key, load, settings_of

if TYPE_CHECKING:
    from app.options import PageOptions


def add_options(parser: argparse.ArgumentParser) -> None:
    page = parser.add_argument_group("the page")
    page.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    page.add_argument("--port", type=int, default=7860, help="port to listen on (default: %(default)s)")
    page.add_argument("--share", action="store_true", help="make a public link through Gradio's relay")
    page.add_argument("--auth", metavar="USER:PASSWORD", help="ask visitors for this name and password")
    page.add_argument(
        "--max-upload-mb", type=int, default=200, metavar="MB", help="largest upload (default: %(default)s)"
    )
    page.add_argument(
        "--open", action=argparse.BooleanOptionalAction, default=True, help="open the page in a browser (default: yes)"
    )
    page.add_argument(
        "--weight-pool-mb",
        type=int,
        metavar="MB",
        help="memory for weights at all precisions together; beyond it those not in use are given up, the checkpoint's "
        "own too, and made or read again when asked for (default: the checkpoint's own and half of what is free)",
    )
    page.add_argument(
        "--prefix-cache-mb",
        type=int,
        default=1024,
        metavar="MB",
        help="memory for the keys and values that cache.prefix keeps, on the model's device (default: %(default)s)",
    )
    add_settings_file(page, "open the page with", None)
    add_signing_key(page, None)
    page.add_argument(
        "--history",
        type=Path,
        metavar="FILE",
        help="keep finished comparisons here (default: history.sqlite in the user's data folder)",
    )
    page.add_argument(
        "--no-history", action="store_true", help="keep no comparison beyond the visit in which it was made"
    )
    endpoint = parser.add_argument_group("the OpenAI-compatible endpoint, /v1 and /metrics")
    endpoint.add_argument(
        "--api",
        action=argparse.BooleanOptionalAction,
        help="--api lets in whoever reaches the port, without a key; --no-api switches the endpoint off. Default: with "
        "--api-keys on, for holders of a key; without, on for programs on this machine if --host is a loopback "
        "address and neither --auth nor --share is given, and off otherwise",
    )
    endpoint.add_argument(
        "--api-keys", type=Path, metavar="FILE", help="let in holders of a key only: one tenant:key a line"
    )
    endpoint.add_argument(
        "--media-from",
        action="append",
        default=[],
        metavar="HOST",
        help="fetch media whose URL begins with https://HOST, or with this scheme, host and port; may be repeated "
        "(default: no URL is fetched)",
    )
    parser.set_defaults(command=command)


def command(options: argparse.Namespace) -> None:
    auth = _parse_auth(options.auth)
    if options.weight_pool_mb is not None and options.weight_pool_mb < 1:
        raise UsageError(f"--weight-pool-mb is {options.weight_pool_mb}; it must be at least 1.")
    if options.prefix_cache_mb < 1:
        raise UsageError(f"--prefix-cache-mb is {options.prefix_cache_mb}; it must be at least 1.")
    if options.max_upload_mb < 1:
        raise UsageError(f"--max-upload-mb is {options.max_upload_mb}; it must be at least 1.")
    if options.api is False and options.api_keys is not None:
        raise UsageError("--no-api and --api-keys exclude each other.")
    from app.api.gate import Gate, read_keys
    from app.api.sources import read_origins

    media_from = read_origins(options.media_from)
    gate = Gate.choose(
        host=options.host,
        keys=read_keys(options.api_keys) if options.api_keys is not None else None,
        wanted=options.api,
        guarded=auth is not None or options.share,
    )
    page = _page_options(options)
    _check_port(options.host, options.port)
    sizes = {"prefix_cache_bytes": options.prefix_cache_mb << 20}
    if options.weight_pool_mb is not None:
        sizes["weight_pool_bytes"] = options.weight_pool_mb << 20
    engine = load(options, **sizes)
    if page.settings is not None:
        engine.check(page.settings)
    from app.server import serve

    folder = Path(options.model).expanduser()
    serve(
        engine,
        host=options.host,
        port=options.port,
        share=options.share,
        auth=auth,
        max_upload_mb=options.max_upload_mb,
        open_browser=options.open,
        # Clients see no more of a path than the folder's name.
        model_name=folder.resolve().name if folder.is_dir() else options.model,
        gate=gate,
        page_options=page,
        media_from=media_from,
    )


def _page_options(options: argparse.Namespace) -> PageOptions:
    if options.no_history and options.history is not None:
        raise UsageError("--no-history and --history exclude each other.")
    from app.options import PageOptions
    from engines.experts.calibration import cache_folder
    from engines.history import HistoryStore, default_path
    from engines.signing import read_key

    history = None
    if options.history is not None:
        history = HistoryStore(options.history)
    elif not options.no_history:
        try:
            history = HistoryStore(default_path())
        except ValueError as error:  # of a file that nobody asked for
            print(f"launch.py: {error} Until then no comparison is kept.", file=sys.stderr)
    return PageOptions(
        settings=settings_of(options) if options.settings is not None else None,
        signing_key=read_key(options.signing_key),
        history=history,
        sweeps=None if options.no_history else cache_folder() / "page-sweeps",
    )


def _parse_auth(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    user, colon, password = text.partition(":")
    if not colon or not user or not password:
        raise UsageError("--auth must be of the form USER:PASSWORD.")
    return user, password


def _check_port(host: str, port: int) -> None:
    """Find out before the model is loaded whether the page can have its address."""
    if not 0 < port < 65536:
        raise UsageError(f"--port is {port}; it must be from 1 to 65535.")
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UsageError(f"--host {host} is not an address of this machine ({error.strerror}).") from error
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            raise UsageError(f"Cannot listen on {host}:{port} ({error.strerror}); choose another --port.") from error
