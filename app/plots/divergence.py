"""How far the compressed model's predictions are from the full one's, token by token of the full answer."""

from __future__ import annotations

import plotly.graph_objects as go

from app.plots.figure import FAINT, SIDE_COLOURS, blank_layout
from app.words import MISSING, count, escape
from engines.divergence_report import Candidate, DivergenceReport, TokenDivergence

HEIGHT = 210
# Of more tokens the chart shows a window that can be dragged.
MOST_BARS = 120
OTHER, CLOSE = "another token on top", "same token on top"


def divergence(report: DivergenceReport, chosen: int) -> go.Figure:
    """A bar a token, as high as its KL divergence; a cross on top of those whose most likely token differs."""
    tokens = report.tokens
    figure = go.Figure(layout=blank_layout(HEIGHT))
    places = [token.index + 1 for token in tokens]
    figure.add_bar(
        x=places,
        y=[token.kl for token in tokens],
        marker={
            "color": SIDE_COLOURS["compressed"],
            "opacity": [1.0 if token.index == chosen else 0.6 for token in tokens],
            "line": {"width": [2 if token.index == chosen else 0 for token in tokens], "color": "#7d8590"},
        },
        customdata=[[visible(token.text), f"{token.kl:.3g}", OTHER if differs(token) else CLOSE] for token in tokens],
        hovertemplate="Token %{x}: %{customdata[0]}<br>KL %{customdata[1]} nats<br>%{customdata[2]}<extra></extra>",
        name="KL divergence",
    )
    other = [token for token in tokens if differs(token)]
    nowhere: list[float | None] = [None]
    figure.add_scatter(
        x=[token.index + 1 for token in other] or nowhere,
        y=[token.kl for token in other] or nowhere,
        mode="markers",
        marker={"symbol": "x", "size": 8, "color": "#d1495b"},
        name=f"Most likely token differs ({len(other)})",
        hoverinfo="skip",
        showlegend=True,
    )
    figure.update_layout(
        margin={"l": 52, "r": 12, "t": 30, "b": 42},
        xaxis={
            "title": {"text": "Token of the full model's answer", "standoff": 6, "font": {"size": 11}},
            "range": [0.4, min(len(tokens), MOST_BARS) + 0.6],
            "dtick": max(1, min(len(tokens), MOST_BARS) // 12),
            "fixedrange": len(tokens) <= MOST_BARS,
        },
        yaxis={
            "title": {"text": "KL, nats", "standoff": 6, "font": {"size": 11}},
            "rangemode": "tozero",
            "gridcolor": FAINT,
            "zeroline": False,
            "fixedrange": True,
        },
        dragmode="pan" if len(tokens) > MOST_BARS else False,
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "itemclick": False},
    )
    return figure


def divergence_table(report: DivergenceReport) -> str:
    """Every token with its divergence and what either model held most likely."""
    rows = "".join(
        f'<tr data-token="{token.index}" data-kl="{token.kl:.6g}"><th scope="row">{token.index + 1}</th>'
        f'<td class="word">{escape(visible(token.text))}</td><td>{token.kl:.3g}</td>'
        f'<td class="word">{"no" if differs(token) else "yes"}</td>'
        f"<td>{share(token.full_probability)}</td><td>{share(token.compressed_probability)}</td></tr>"
        for token in report.tokens
    )
    return (
        '<div class="scroll"><table class="figures"><thead><tr><th scope="col">#</th><th scope="col" class="word">Token'
        '</th><th scope="col">KL, nats</th><th scope="col" class="word">Same most likely</th><th scope="col">'
        f'Probability, full</th><th scope="col">Compressed</th></tr></thead><tbody>{rows}</tbody></table></div>'
    )


def summary_table(report: DivergenceReport) -> str:
    """One row, with the columns that llama.cpp's table of KL divergence has."""
    found = report.agreement
    cells = (
        ("Mean KL", f"{found.mean_kl:.3g}"),
        ("Median KL", f"{found.median_kl:.3g}"),
        ("99th percentile", MISSING if found.p99_kl is None else f"{found.p99_kl:.3g}"),
        ("Maximum KL", f"{found.max_kl:.3g}"),
        ("Same top token", f"{found.same_top:.1%}".replace("%", " %")),
        ("Tokens", count(found.positions)),
    )
    head = "".join(f'<th scope="col">{name}</th>' for name, _ in cells)
    body = "".join(f"<td>{value}</td>" for _, value in cells)
    return (
        f'<div class="scroll"><table class="figures" id="divergence-summary" data-mean="{found.mean_kl:.6g}"'
        f' data-same="{found.same_top:.6g}"><thead><tr>{head}</tr></thead><tbody><tr>{body}</tr></tbody></table></div>'
    )


def candidates_table(token: TokenDivergence) -> str:
    """What either model would have drawn at one place, the most likely first."""
    rows = "".join(
        f'<tr><th scope="row">{place}</th>{_candidate(ours, token)}{_candidate(theirs, token)}</tr>'
        for place, (ours, theirs) in enumerate(zip(token.full_top, token.compressed_top, strict=True), start=1)
    )
    return (
        '<div class="scroll"><table class="figures" id="divergence-candidates"><thead><tr><th scope="col"></th>'
        '<th scope="col" class="word">Full</th><th scope="col">Probability</th>'
        '<th scope="col" class="word">Compressed</th><th scope="col">Probability</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _candidate(one: Candidate, token: TokenDivergence) -> str:
    text = escape(visible(one.text))
    text = f"<b>{text}</b> (answered)" if one.token == token.token else text
    return f'<td class="word">{text}</td><td>{share(one.probability)}</td>'


def differs(token: TokenDivergence) -> bool:
    return not token.same_top


def share(probability: float) -> str:
    """A probability in percent, small ones with enough digits to be told from 0."""
    return f"{probability:.1%}".replace("%", " %") if probability >= 0.001 or not probability else f"{probability:.1g}"


def visible(text: str) -> str:
    """A token's text with its spaces and line ends to be seen."""
    return text.replace(" ", "·").replace("\n", "↵").replace("\t", "→") or "∅"
