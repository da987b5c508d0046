"""Draws kernels under the roofline of their card: operations a second by operations a byte, both axes logarithmic.

    python tools/pictures/roofline.py bench/results/h200_roofline.json docs/images/roofline.svg

The file gives the card's bandwidth (bytes a second) and rate (operations a second), and of each kernel its operations, the
bytes that it cannot avoid to move, and its time. Names stand at the right of the points, from the top down, so that none
covers another.
"""

import json
import math
import sys
from pathlib import Path

WIDTH, HEIGHT, LEFT, ABOVE, NAMES, BELOW = 560, 380, 64, 54, 190, 44
COLOURS = {"decode": "#c2410c", "prompt": "#1f6feb"}


def escape(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def picture(given):
    rate, bandwidth = given["rate"], given["bandwidth"]
    points = [dict(p, x=p["operations"] / p["bytes"], y=p["operations"] / p["microseconds"] * 1e6) for p in given["points"]]
    low_x, high_x = 10 ** math.floor(math.log10(min(p["x"] for p in points))), 10 ** math.ceil(math.log10(max(p["x"] for p in points)))
    low_y, high_y = 10 ** math.floor(math.log10(min(p["y"] for p in points))), 10 ** math.ceil(math.log10(rate))
    place_x = lambda x: LEFT + WIDTH * math.log(x / low_x) / math.log(high_x / low_x)
    place_y = lambda y: ABOVE + HEIGHT * (1 - math.log(y / low_y) / math.log(high_y / low_y))
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + NAMES}" height="{ABOVE + HEIGHT + BELOW}" font-family="sans-serif" font-size="12" fill="#333">']
    svg.append('<rect width="100%" height="100%" fill="#fff"/>')
    svg.append(f'<text x="{LEFT}" y="22" font-size="15">{escape(given["title"])}</text>')
    svg.append(f'<text x="{LEFT}" y="42">operations a second, by operations for each byte moved</text>')
    for power in range(round(math.log10(low_x)), round(math.log10(high_x)) + 1):
        x = place_x(10**power)
        svg.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{ABOVE}" y2="{ABOVE + HEIGHT}" stroke="#e5e5e5"/>')
        svg.append(f'<text x="{x:.1f}" y="{ABOVE + HEIGHT + 18}" text-anchor="middle">{10**power:,}</text>')
    for power in range(round(math.log10(low_y)), round(math.log10(high_y)) + 1):
        y = place_y(10**power)
        svg.append(f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e5e5e5"/>')
        svg.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{10 ** (power - 12):g} T</text>')
    start, ridge = max(low_x, low_y / bandwidth), rate / bandwidth
    roof = [(start, start * bandwidth), (ridge, rate), (high_x, rate)]
    svg.append('<polyline points="' + " ".join(f"{place_x(x):.1f},{place_y(y):.1f}" for x, y in roof) + '" fill="none" stroke="#333" stroke-width="2"/>')
    svg.append(f'<text x="{place_x(ridge) + 4:.1f}" y="{place_y(rate) - 8:.1f}">{rate / 1e12:.0f} TFLOP/s</text>')
    middle = math.sqrt(start * ridge)
    svg.append(f'<text x="{place_x(middle) - 8:.1f}" y="{place_y(middle * bandwidth) - 8:.1f}" text-anchor="end">{bandwidth / 1e12:.1f} TB/s</text>')
    name_y = 0.0
    for point in sorted(points, key=lambda p: -p["y"]):
        x, y, colour = place_x(point["x"]), place_y(point["y"]), COLOURS[point["step"]]
        name_y = max(y, name_y + 15)
        share = point["y"] / min(rate, point["x"] * bandwidth)
        svg.append(f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{LEFT + WIDTH + 4}" y2="{name_y:.1f}" stroke="{colour}" stroke-opacity="0.25"/>')
        svg.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>')
        svg.append(f'<text x="{LEFT + WIDTH + 8}" y="{name_y + 4:.1f}" fill="{colour}">{escape(point["name"])} {share:.0%}</text>')
    for at, (step, colour) in enumerate(COLOURS.items()):
        svg.append(f'<text x="{LEFT + WIDTH + 8}" y="{22 + 16 * at}" fill="{colour}">{step}, share of the roof</text>')
    return "\n".join(svg) + "\n</svg>\n"


def main():
    source, target = map(Path, sys.argv[1:])
    target.write_text(picture(json.loads(source.read_text())))


if __name__ == "__main__":
    main()
