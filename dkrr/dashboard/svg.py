"""Small pictures as SVG in a page: axes with units, lines, points, bars. Colours are those of the page, light or dark.

matplotlib would be a dependency of hundreds of times its size, and its pictures keep the colours of one mode.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dkrr.markup import escape

WIDTH, HEIGHT = 560, 280
LEFT, RIGHT, TOP, BOTTOM = 74, 16, 14, 46
CHARACTER = 7.0
"""Pixels of a character of the labels."""
N_COLOURS = 10
"""Colours of the page, classes c0, c1, ...; further series repeat them."""

Numbers = Sequence[float]
Format = Callable[[float], str]


def plain(value: float) -> str:
    """Number with few digits, for a tick."""
    if value and not 1e-3 <= abs(value) < 1e5:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:.4g}"


@dataclass(frozen=True)
class Scale:
    """Numbers to pixels."""

    low: float
    high: float
    start: float
    stop: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """Pixel of a number; at the edge for one outside."""
        low, high = self.low, self.high
        if self.is_log:
            low, high = math.log10(low), math.log10(high)
            value = math.log10(max(value, self.low))
        part = min(max((value - low) / (high - low), 0.0), 1.0)
        return self.start + part * (self.stop - self.start)

    def ticks(self, n: int = 6) -> list[float]:
        """About `n` round numbers within the scale."""
        if self.is_log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            step = max(1, -(-(last - first) // n))
            found = [10.0**k for k in range(first, last + 1, step)]
            if len(found) >= 2:
                return found
        width = (self.high - self.low) / n
        power = 10.0 ** math.floor(math.log10(width))
        size = next(power * k for k in (1, 2, 5, 10) if power * k >= width * 0.999)
        first = math.ceil(self.low / size - 1e-9)
        return [k * size for k in range(first, math.floor(self.high / size + 1e-9) + 1)]


def linear(values: Numbers, start: float, stop: float, *, from_zero: bool = False) -> Scale:
    """Linear scale of finite numbers, with a margin; from 0 without one at 0."""
    low, high = min(values), max(values)
    if from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    margin = 0.04 * (high - low) or 0.5 * abs(high) or 1.0
    return Scale(low if from_zero and low == 0.0 else low - margin, high + margin, start, stop)


def logarithmic(values: Numbers, start: float, stop: float) -> Scale:
    """Logarithmic scale of positive numbers."""
    found = [v for v in values if v > 0]
    low, high = (min(found), max(found)) if found else (1.0, 10.0)
    if high < 3 * low:
        low, high = low / 2, high * 2
    return Scale(low / 1.2, high * 1.2, start, stop, is_log=True)


@dataclass
class Picture:
    """Picture with axes, to which series are added.

    Parameters
    ----------
    x, y : Scale
        From data to pixels; `horizontal` and `vertical` give their pixels.
    x_label, y_label : str
        Names of the axes, with units.
    """

    x: Scale
    y: Scale
    x_label: str
    y_label: str
    title: str = ""
    width: int = WIDTH
    height: int = HEIGHT
    x_format: Format = plain
    y_format: Format = plain
    _parts: list[str] = field(default_factory=list)
    _legend: list[tuple[str, str]] = field(default_factory=list)

    def line(self, xs: Numbers, ys: Numbers, colour: int, name: str = "", *, dashed: bool = False) -> None:
        """Line through points."""
        points = [f"{self.x(a):.1f} {self.y(b):.1f}" for a, b in zip(xs, ys, strict=True)]
        style = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(f'<path class="line s{colour % N_COLOURS}"{style} d="M{"L".join(points)}"/>')
        self._named(name, f"f{colour % N_COLOURS}")

    def band(self, xs: Numbers, low: Numbers, high: Numbers, colour: int) -> None:
        """Area between two lines."""
        there = [f"{self.x(a):.1f} {self.y(b):.1f}" for a, b in zip(xs, low, strict=True)]
        back = [f"{self.x(a):.1f} {self.y(b):.1f}" for a, b in reversed(list(zip(xs, high, strict=True)))]
        self._parts.append(f'<path class="f{colour % N_COLOURS}" opacity="0.15" d="M{"L".join(there + back)}Z"/>')

    def points(
        self, xs: Numbers, ys: Numbers, colour: int, name: str = "", size: float = 5, opacity: float = 1.0
    ) -> None:
        """Dots, as one path of strokes without length."""
        dots = "".join(f"M{self.x(a):.1f} {self.y(b):.1f}h0" for a, b in zip(xs, ys, strict=True))
        look = f'stroke-width="{size}" stroke-opacity="{opacity}"'
        self._parts.append(f'<path class="dots s{colour % N_COLOURS}" {look} d="{dots}"/>')
        self._named(name, f"f{colour % N_COLOURS}")

    def boxes(self, boxes: Sequence[tuple[float, float, float, float]], colour: int, name: str = "") -> None:
        """Filled rectangles from (x, y) to (x, y), in data."""
        drawn = []
        for x0, y0, x1, y1 in boxes:
            a, b, c, d = self.x(x0), self.y(y0), self.x(x1), self.y(y1)
            drawn.append(f"M{a:.1f} {b:.1f}H{max(c, a + 0.6):.1f}V{d:.1f}H{a:.1f}Z")
        self._parts.append(f'<path class="f{colour % N_COLOURS}" d="{"".join(drawn)}"/>')
        self._named(name, f"f{colour % N_COLOURS}")

    def level(self, value: float, label: str) -> None:
        """Dashed line across, at a value of y."""
        y = self.y(value)
        self._parts.append(f'<path class="level" d="M{LEFT} {y:.1f}H{self.width - RIGHT}"/>')
        self._parts.append(f'<text class="tick" x="{self.width - RIGHT - 4}" y="{y - 4:.1f}" text-anchor="end">')
        self._parts[-1] += f"{escape(label)}</text>"

    def _named(self, name: str, look: str) -> None:
        if name and (name, look) not in self._legend:
            self._legend.append((name, look))

    def svg(self) -> str:
        """The picture, with its legend above it."""
        bottom, right = self.height - BOTTOM, self.width - RIGHT
        parts = [f'<svg viewBox="0 0 {self.width} {self.height}" width="{self.width}" role="img">']
        parts.append(f"<title>{escape(self.title or self.y_label)}</title>")
        for tick in self.y.ticks(5):
            y = self.y(tick)
            parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{right}"/>')
            label = escape(self.y_format(tick))
            parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
        ticks = self.x.ticks(max(2, (right - LEFT) // 80))
        for tick in ticks:
            x, label = self.x(tick), escape(self.x_format(tick))
            parts.append(f'<path class="axis" d="M{x:.1f} {bottom}v4"/>')
            parts.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">{label}</text>')
        parts.append(f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{right}"/>')
        parts.append(
            f'<text class="label" x="{(LEFT + right) / 2}" y="{self.height - 8}" text-anchor="middle">'
            f"{escape(self.x_label)}</text>"
        )
        middle = (TOP + bottom) / 2
        parts.append(
            f'<text class="label" x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">'
            f"{escape(self.y_label)}</text>"
        )
        legend = "".join(f'<span><i class="{look}"></i>{escape(name)}</span>' for name, look in self._legend)
        drawn = "".join([*parts, *self._parts, "</svg>"])
        title = f"<figcaption>{escape(self.title)}</figcaption>" if self.title else ""
        return f"<figure>{title}{f'<div class=legend>{legend}</div>' if legend else ''}{drawn}</figure>"


def rows_of_bars(
    rows: Sequence[tuple[str, Sequence[tuple[float, int, str]]]], unit: str, format_value: Format, legend: Sequence[str]
) -> str:
    """Horizontal bars from 0: rows of a label with bars of (value, colour, text).

    Parameters
    ----------
    unit : str
        Name of the axis, with its unit.
    legend : sequence of str
        Names of the colours.
    """
    left = 12 + round(max(len(label) for label, _ in rows) * CHARACTER)
    each, gap, width, top = 13, 9, 2 * WIDTH, 6
    n_bars = sum(len(bars) for _, bars in rows)
    height = top + n_bars * each + len(rows) * gap + 40
    longest = max((value for _, bars in rows for value, _, _ in bars), default=1.0) or 1.0
    x = Scale(0.0, longest, left, width - 120)
    bottom = height - 38
    parts = [f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img"><title>{escape(unit)}</title>']
    for tick in x.ticks(8):
        parts.append(f'<path class="grid" d="M{x(tick):.1f} {top}V{bottom}"/>')
        label = escape(format_value(tick))
        parts.append(f'<text class="tick" x="{x(tick):.1f}" y="{bottom + 15}" text-anchor="middle">{label}</text>')
    y = float(top)
    for label, bars in rows:
        middle = y + len(bars) * each / 2 + 4
        parts.append(f'<text class="tick" x="{left - 8}" y="{middle:.1f}" text-anchor="end">{escape(label)}</text>')
        for value, colour, text in bars:
            length = x(value) - left
            parts.append(
                f'<rect class="f{colour}" x="{left}" y="{y:.1f}" width="{max(length, 1):.1f}" height="{each - 2}"/>'
                f'<text class="tick" x="{left + length + 5:.1f}" y="{y + 10:.1f}">{escape(text)}</text>'
            )
            y += each
        y += gap
    parts.append(f'<text class="label" x="{(left + width) / 2}" y="{height - 4}" text-anchor="middle">')
    parts[-1] += f"{escape(unit)}</text></svg>"
    names = "".join(f'<span><i class="f{k}"></i>{escape(name)}</span>' for k, name in enumerate(legend))
    return f"<figure>{f'<div class=legend>{names}</div>' if names else ''}{''.join(parts)}</figure>"
