"""Plots as SVG, written by hand: panels one below the other, lines over time.

Enough to see what a policy did, in a file that any browser shows, without a plotting library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Panel", "Series", "svg"]

_WIDTH, _HEIGHT = 860, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 26, 26
_COLOURS = ("#1f6fb4", "#d1621b", "#2f8f4e", "#8a4fb0", "#7a7a7a")


@dataclass(frozen=True)
class Series:
    """A line: values at times, in seconds."""

    name: str
    at_s: Sequence[float]
    values: Sequence[float]


@dataclass(frozen=True)
class Panel:
    """Lines that share a scale."""

    title: str
    series: tuple[Series, ...]


def svg(title: str, panels: Sequence[Panel]) -> str:
    """The panels as the text of an SVG file."""
    height = 30 + _HEIGHT * len(panels)
    end_s = max((s.at_s[-1] for p in panels for s in p.series if s.at_s), default=1.0) or 1.0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="20" font-size="14">{escape(title)}</text>',
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, 30 + number * _HEIGHT, end_s)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(panel: Panel, top: float, end_s: float) -> list[str]:
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    highest = max((max(s.values) for s in panel.series if s.values), default=1.0) or 1.0
    floor = top + _TOP + height

    def x(at_s: float) -> float:
        return _LEFT + width * at_s / end_s

    def y(value: float) -> float:
        return floor - height * value / highest

    parts = [f'<text x="{_LEFT}" y="{top + 16:.1f}" fill="#444">{escape(panel.title)}</text>']
    for part in range(5):
        value, at_s = highest * part / 4, end_s * part / 4
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}" '
            f'stroke="#e4e4e4"/><text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">'
            f'{_short(value)}</text><text x="{x(at_s):.1f}" y="{floor + 15:.1f}" '
            f'text-anchor="middle">{_short(at_s)} s</text>'
        )
    for number, series in enumerate(panel.series):
        colour = _COLOURS[number % len(_COLOURS)]
        points = " ".join(
            f"{x(at):.1f},{y(value):.1f}"
            for at, value in zip(series.at_s, series.values, strict=True)
        )
        parts.append(f'<polyline fill="none" stroke="{colour}" points="{points}"/>')
        parts.append(
            f'<text x="{_WIDTH - _RIGHT - 90 * (len(panel.series) - number - 1)}" '
            f'y="{top + 16:.1f}" fill="{colour}" text-anchor="end">{escape(series.name)}</text>'
        )
    return parts


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
