"""Plots as inline SVG, built as XML elements: a label is text and can never become markup."""

from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element, SubElement

_WIDTH, _HEIGHT, _MARGIN = 420, 180, 34


def before_and_after(
    title: str, labels: Sequence[str], before: Sequence[float], after: Sequence[float], *, unit: str
) -> Element:
    """Two bars for each label. Each bar says its numbers when pointed at."""
    figure = Element("figure")
    SubElement(figure, "figcaption").text = title
    svg = SubElement(
        figure,
        "svg",
        {"viewBox": f"0 0 {_WIDTH} {_HEIGHT}", "role": "img", "aria-label": title, "class": "plot"},
    )
    highest = max((*before, *after, 1e-9))
    floor = _HEIGHT - _MARGIN
    step = (_WIDTH - 2 * _MARGIN) / max(1, len(labels))
    _text(svg, _MARGIN - 4, 14, _number(highest), "end")
    _line(svg, _MARGIN, floor, _WIDTH - _MARGIN, floor)
    shown = max(1, len(labels) // 11 + 1)
    for number, label in enumerate(labels):
        left = _MARGIN + number * step
        for position, (kind, values) in enumerate((("before", before), ("after", after))):
            height = (floor - 10) * values[number] / highest
            bar = SubElement(
                svg,
                "rect",
                {
                    "class": kind,
                    "x": f"{left + step * (0.1 + 0.4 * position):.1f}",
                    "y": f"{floor - height:.1f}",
                    "width": f"{step * 0.38:.1f}",
                    "height": f"{height:.1f}",
                },
            )
            SubElement(bar, "title").text = f"{label}, {kind}: {_number(values[number])} {unit}"
        if number % shown == 0:
            _text(svg, left + step / 2, floor + 14, label if len(label) < 14 else label[:12] + "…", "middle")
    return figure


def stacked_bar(title: str, parts: Mapping[str, int], total: int) -> Element:
    """One bar: each part by its share of the total."""
    figure = Element("figure", {"class": "wide"})
    SubElement(figure, "figcaption").text = title
    svg = SubElement(
        figure, "svg", {"viewBox": "0 0 860 40", "role": "img", "aria-label": title, "class": "plot"}
    )
    left = 0.0
    for name, count in parts.items():
        width = 860 * count / max(1, total)
        bar = SubElement(
            svg,
            "rect",
            {"class": name, "x": f"{left:.1f}", "y": "4", "width": f"{width:.1f}", "height": "32"},
        )
        SubElement(bar, "title").text = f"{name.replace('_', ' ')}: {count} of {total}"
        left += width
    return figure


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:.2f}"


def _text(svg: Element, x: float, y: float, text: str, anchor: str) -> None:
    SubElement(svg, "text", {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor}).text = text


def _line(svg: Element, x1: float, y1: float, x2: float, y2: float) -> None:
    SubElement(svg, "line", {"x1": str(x1), "y1": str(y1), "x2": str(x2), "y2": str(y2)})
