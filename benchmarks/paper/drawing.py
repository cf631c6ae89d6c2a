"""Bars as SVG, without a package for it."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

COLOURS = ("#3b6ea5", "#c8793c", "#6b9a52", "#8a6aa8")
LABELS, BARS, NUMBERS = 300, 420, 80
"""Pixels for the names of groups, the longest bar, and the number beside it."""
BAR, GAP, TOP = 14, 10, 56

Groups = Mapping[str, Mapping[str, float]]


def draw_bars(title: str, groups: Groups) -> str:
    """An SVG with a group of bars for each name, and a bar in it for each series: its value over the largest."""
    series = list(dict.fromkeys(name for group in groups.values() for name in group))
    most = max((value for group in groups.values() for value in group.values()), default=0.0) or 1.0
    parts, y = [_legend(title, series)], TOP
    for name, group in groups.items():
        middle = y + BAR * len(group) / 2 + 4
        parts.append(f'<text x="{LABELS - 8}" y="{middle:g}" text-anchor="end">{escape(name)}</text>')
        for one, value in group.items():
            length = max(1.0, BARS * value / most)
            colour = COLOURS[series.index(one) % len(COLOURS)]
            parts.append(f'<rect x="{LABELS}" y="{y}" width="{length:.1f}" height="{BAR - 2}" fill="{colour}"/>')
            parts.append(f'<text x="{LABELS + length + 4:.1f}" y="{y + BAR - 4}">{value:g}</text>')
            y += BAR
        y += GAP
    size = f'width="{LABELS + BARS + NUMBERS}" height="{y}"'
    style = 'font-family="sans-serif" font-size="11" fill="#222"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n' + "\n".join(parts) + "\n</svg>\n"


def _legend(title: str, series: list[str]) -> str:
    parts = [f'<rect width="100%" height="100%" fill="#fff"/><text x="8" y="18" font-size="14">{escape(title)}</text>']
    for place, name in enumerate(series):
        x, colour = LABELS + 150 * place, COLOURS[place % len(COLOURS)]
        parts.append(f'<rect x="{x}" y="30" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14}" y="39">{escape(name)}</text>')
    return "\n".join(parts)
