"""Plots as SVG, and pages that hold them: no library, no script, nothing loaded from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

__all__ = [
    "Bar",
    "bar_chart",
    "line_chart",
    "number",
    "page",
]

WIDTH: Final = 820
LABEL_WIDTH: Final = 350
VALUE_WIDTH: Final = 110
BAR_HEIGHT: Final = 18
GAP: Final = 6
TITLE_HEIGHT: Final = 34
CHAR_WIDTH: Final = 7.0
COLORS: Final = ("#0b6e99", "#9a8c98", "#c9702c", "#5a8f4e", "#8a5a9e")

_STYLE: Final = (
    "text{font:12px system-ui,sans-serif;fill:#222}.t{font-weight:600;font-size:14px}"
    ".s{fill:#666}.a{stroke:#888;fill:none}.g{stroke:#ddd}.w{stroke:#222}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.s{fill:#aaa}.g{stroke:#444}.w{stroke:#eee}}"
)


@dataclass(frozen=True)
class Bar:
    """One bar: its label, its figure with the spread, the text beside it, its colour's number."""

    label: str
    value: float
    text: str
    low: float | None = None
    high: float | None = None
    color: int = 0


def number(value: float) -> str:
    """A figure with three digits, thousands separated."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"  # noqa: PLR2004 - digits


def _svg(title: str, height: float, body: Iterable[str]) -> str:
    told = escape(title)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'width="{WIDTH}" height="{height:.0f}" role="img" aria-label="{told}">'
        f"<style>{_STYLE}</style><title>{told}</title>"
        f'<text class="t" x="0" y="18">{told}</text>'
    )
    return "".join([head, *body, "</svg>"])


class _Scale:
    """Map of figures to positions, linear from 0 or logarithmic."""

    def __init__(self, values: Iterable[float], start: float, stop: float, *, log: bool) -> None:
        known = [value for value in values if math.isfinite(value)]
        self._log = log and all(value > 0 for value in known) and bool(known)
        self._start, self._stop = start, stop
        low = min(known, default=1.0)
        high = max(known, default=1.0)
        self._low = math.log10(low) - 0.3 if self._log else 0.0
        self._high = math.log10(high) if self._log else high
        if self._high <= self._low:
            self._high = self._low + 1

    def at(self, value: float) -> float:
        """The position of a figure."""
        if not math.isfinite(value):
            return self._start
        given = math.log10(max(value, 1e-300)) if self._log else value
        share = (given - self._low) / (self._high - self._low)
        return self._start + min(max(share, 0.0), 1.0) * (self._stop - self._start)


def _clipped(text: str, width: float) -> str:
    most = int(width / CHAR_WIDTH)
    return escape(text if len(text) <= most else text[: most - 1] + "…")


def bar_chart(title: str, bars: Sequence[Bar | str], *, log: bool = False, note: str = "") -> str:
    """Draw horizontal bars; those with a spread have a line from its low to its high end.

    A text among the bars is the heading of those below it.
    """
    drawn = [bar for bar in bars if isinstance(bar, Bar)]
    spreads = [edge for bar in drawn for edge in (bar.low, bar.high) if edge is not None]
    left, right = LABEL_WIDTH + 8, WIDTH - VALUE_WIDTH
    scale = _Scale([*(bar.value for bar in drawn), *spreads], left, right, log=log)
    body = []
    y = float(TITLE_HEIGHT)
    for bar in bars:
        if isinstance(bar, str):
            body.append(f'<text x="0" y="{y + 16:.1f}">{_clipped(bar, WIDTH)}</text>')
            y += BAR_HEIGHT + GAP
            continue
        middle = y + BAR_HEIGHT / 2
        end = scale.at(bar.value)
        label = _clipped(bar.label, LABEL_WIDTH)
        fill = COLORS[bar.color % len(COLORS)]
        body.append(
            f'<text x="{LABEL_WIDTH}" y="{middle + 4:.1f}" text-anchor="end">{label}</text>'
            f'<rect x="{left}" y="{y:.1f}" width="{max(end - left, 1):.1f}" '
            f'height="{BAR_HEIGHT}" fill="{fill}" rx="2"/>'
        )
        edge = end
        if bar.low is not None and bar.high is not None and bar.low < bar.high:
            edge = max(end, scale.at(bar.high))
            body.append(
                f'<line class="w" x1="{scale.at(bar.low):.1f}" x2="{scale.at(bar.high):.1f}" '
                f'y1="{middle:.1f}" y2="{middle:.1f}"/>'
            )
        body.append(f'<text x="{edge + 6:.1f}" y="{middle + 4:.1f}">{escape(bar.text)}</text>')
        y += BAR_HEIGHT + GAP
    told = [part for part in (note, "logarithmic" if log else "") if part]
    body.append(f'<text class="s" x="0" y="{y + 12:.1f}">{escape("; ".join(told))}</text>')
    return _svg(title, y + 20, body)


def line_chart(
    title: str,
    lines: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x: str,
    y: str,
    log: bool = False,
) -> str:
    """Draw a line for each entry of ``lines``: points of (x, y), in the order of x."""
    points = [point for line in lines.values() for point in line]
    left, right, top, bottom = 60.0, WIDTH - 170.0, float(TITLE_HEIGHT), 250.0
    across = _Scale([point[0] for point in points], left, right, log=False)
    up = _Scale([point[1] for point in points], bottom, top, log=log)
    body = [f'<path class="a" d="M{left} {top}V{bottom}H{right}"/>']
    values = sorted(point[1] for point in points)
    marks = {values[round((len(values) - 1) * at)] for at in (0, 0.5, 1)} if values else set()
    body += [
        f'<line class="g" x1="{left}" x2="{right}" y1="{up.at(value):.1f}" '
        f'y2="{up.at(value):.1f}"/><text class="s" x="{left - 6}" y="{up.at(value) + 4:.1f}" '
        f'text-anchor="end">{number(value)}</text>'
        for value in sorted(marks)
    ]
    for at, (name, line) in enumerate(lines.items()):
        color = COLORS[at % len(COLORS)]
        path = " ".join(f"{across.at(px):.1f},{up.at(py):.1f}" for px, py in line)
        body.append(
            f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>'
            f'<text x="{right + 10}" y="{top + 14 + 18 * at:.1f}" style="fill:{color}">'
            f"{_clipped(name, 160)}</text>"
        )
    told = f"{y}, by {x}{'; logarithmic' if log else ''}"
    body.append(f'<text class="s" x="{left}" y="{bottom + 20}">{escape(told)}</text>')
    return _svg(title, bottom + 30, body)


def page(
    title: str,
    *,
    facts: Iterable[tuple[str, object]],
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    charts: Iterable[str],
) -> str:
    """Write an HTML page of charts, a table and facts; it needs no other file."""
    head = "".join(f"<th>{escape(each)}</th>" for each in headings)
    table = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    listed = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in facts
    )
    style = (
        ":root{color-scheme:light dark}body{font:15px system-ui,sans-serif;margin:2em auto;"
        "max-width:800px;padding:0 1em}table{border-collapse:collapse;width:100%}"
        "td,th{text-align:left;padding:.3em .6em;border-bottom:1px solid #8884}"
        "svg{max-width:100%;height:auto;margin:1em 0}dt{font-weight:600}"
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{style}</style></head><body><h1>{escape(title)}</h1>{''.join(charts)}"
        f"<table><thead><tr>{head}</tr></thead><tbody>{table}</tbody></table>"
        f"<dl>{listed}</dl></body></html>\n"
    )
