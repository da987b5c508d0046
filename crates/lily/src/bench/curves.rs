//! The two curves of a benchmark as an SVG picture: prefill and decode by prompt length.

use std::fmt::Write;

/// Of one length: tokens, and tokens a second of prefill and of decode.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    pub length: usize,
    pub prefill: f64,
    pub decode: f64,
}

const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 240.0;
/// Room for numbers left of and below the plot, and for titles above it.
const LEFT: f64 = 64.0;
const BELOW: f64 = 34.0;
const ABOVE: f64 = 56.0;

/// The picture; `title` stands above both curves. Lengths ascend.
pub fn draw(title: &str, points: &[Point]) -> String {
    let mut svg = String::new();
    let (width, height) = (2.0 * (LEFT + WIDTH) + 24.0, ABOVE + HEIGHT + BELOW);
    let style = "font-family=\"sans-serif\" font-size=\"12\" fill=\"#333\"";
    let _ = writeln!(svg, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" {style}>");
    let _ = writeln!(svg, "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>");
    let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"22\" font-size=\"15\">{}</text>", escape(title));
    panel(&mut svg, LEFT, "prefill, tok/s by prompt length", "#1f6feb", points, |point| point.prefill);
    panel(&mut svg, 2.0 * LEFT + WIDTH, "decode, tok/s by context", "#c2410c", points, |point| point.decode);
    svg.push_str("</svg>\n");
    svg
}

fn panel(svg: &mut String, left: f64, title: &str, colour: &str, points: &[Point], value: impl Fn(&Point) -> f64) {
    let top = nice(points.iter().map(&value).fold(0.0, f64::max));
    let logs: Vec<f64> = points.iter().map(|point| (point.length as f64).log2()).collect();
    let (first, last) = (logs[0], logs[logs.len() - 1]);
    let x = |log: f64| left + 14.0 + (log - first) / (last - first).max(1e-9) * (WIDTH - 28.0);
    let y = |rate: f64| ABOVE + HEIGHT - rate / top * HEIGHT;
    let _ = writeln!(svg, "<text x=\"{left}\" y=\"44\" fill=\"{colour}\">{title}</text>");
    for step in 0..=4 {
        let (rate, at) = (top * f64::from(step) / 4.0, y(top * f64::from(step) / 4.0));
        let _ = writeln!(svg, "<line x1=\"{left}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#e5e5e5\"/>", left + WIDTH);
        let _ = writeln!(svg, "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{rate:.0}</text>", left - 6.0, at + 4.0);
    }
    let places: Vec<(f64, f64)> = points.iter().zip(&logs).map(|(point, &log)| (x(log), y(value(point)))).collect();
    let line: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(svg, "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>", line.join(" "));
    for ((x, y), point) in places.iter().zip(points) {
        let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        let _ =
            writeln!(svg, "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>", ABOVE + HEIGHT + 18.0, tokens(point.length));
    }
}

/// The next of 1, 2, 2.5, 4, 5, 8, 10 times a power of ten.
fn nice(most: f64) -> f64 {
    let most = if most > 0.0 { most } else { 1.0 };
    let power = 10f64.powf(most.log10().floor());
    [1.0, 2.0, 2.5, 4.0, 5.0, 8.0, 10.0].map(|step| step * power).into_iter().find(|&top| top >= most).unwrap_or(10.0 * power)
}

/// 512, 2K, 3840.
fn tokens(length: usize) -> String {
    if length >= 1024 && length.is_multiple_of(1024) { format!("{}K", length / 1024) } else { length.to_string() }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_is_inside_the_picture_and_larger_is_higher() {
        let points = [(256, 7850.0, 432.0), (3840, 20_679.0, 0.0), (131_072, 5167.0, 223.0)];
        let points = points.map(|(length, prefill, decode)| Point { length, prefill, decode });
        let svg = draw("full <on> a & b", &points);
        assert!(svg.contains("full &lt;on&gt; a &amp; b") && svg.contains(">128K<") && svg.contains(">3840<"));
        let attribute = |line: &str, name: &str| -> f64 {
            let from = line.find(&format!("{name}=\"")).expect("it is there") + name.len() + 2;
            line[from..].split('"').next().and_then(|number| number.parse().ok()).expect("a number")
        };
        let circles: Vec<(f64, f64)> =
            svg.lines().filter(|line| line.starts_with("<circle")).map(|line| (attribute(line, "cx"), attribute(line, "cy"))).collect();
        assert_eq!(circles.len(), 6);
        assert!(circles.iter().all(|&(x, y)| (0.0..960.0).contains(&x) && (ABOVE..=ABOVE + HEIGHT).contains(&y)), "{circles:?}");
        assert!(circles[1].1 < circles[0].1 && circles[0].1 < circles[2].1, "{circles:?}");
    }

    #[test]
    fn axes_end_at_round_numbers() {
        for (most, top) in [(432.7, 500.0), (20_875.0, 25_000.0), (9.9, 10.0), (10.0, 10.0), (0.0, 1.0)] {
            assert_eq!(nice(most), top, "{most}");
        }
    }
}
