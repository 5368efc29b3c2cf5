//! Draws figures over a number of something, as an SVG file.

use std::fmt::{self, Write as _};

/// Curves under one title, over the same numbers.
#[derive(Debug, Default)]
pub(crate) struct Panel {
    /// What the curves count, over what.
    pub(crate) title: String,
    /// Where there are points; drawn in proportion to their logarithms.
    pub(crate) over: Vec<f64>,
    /// Each with its name.
    pub(crate) curves: Vec<(String, Vec<f64>)>,
}

/// Panels, one below the other.
#[derive(Debug, Default)]
pub(crate) struct Plot(pub(crate) Vec<Panel>);

impl fmt::Display for Plot {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let height = 270 * self.0.len() + 20;
        writeln!(
            out,
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 {height}" font-family="sans-serif" font-size="12">"#
        )?;
        writeln!(out, r#"<rect width="900" height="{height}" fill="white"/>"#)?;
        let mut top = 30.0;
        for panel in &self.0 {
            panel.draw(out, top)?;
            top += 270.0;
        }
        writeln!(out, "</svg>")
    }
}

impl Panel {
    fn draw(&self, out: &mut fmt::Formatter<'_>, top: f64) -> fmt::Result {
        let (bottom, right) = (top + HEIGHT, LEFT + WIDTH);
        let highest = self.curves.iter().flat_map(|curve| &curve.1).copied().fold(1e-9, f64::max);
        let title_at = top - 8.0;
        writeln!(
            out,
            r#"<text x="{LEFT}" y="{title_at}" font-weight="bold">{}</text>"#,
            self.title
        )?;
        writeln!(
            out,
            r##"<path d="M{LEFT} {top}V{bottom}H{right}" fill="none" stroke="#888888"/>"##
        )?;
        for part in [0.0, 0.5, 1.0] {
            let (x, y) = (LEFT - 6.0, bottom - HEIGHT * part + 4.0);
            let value = highest * part;
            writeln!(out, r#"<text x="{x}" y="{y}" text-anchor="end">{value:.3}</text>"#)?;
        }
        for &number in &self.over {
            let (x, y) = (self.x(number), bottom + 18.0);
            writeln!(out, r#"<text x="{x:.1}" y="{y}" text-anchor="middle">{number}</text>"#)?;
        }
        for (place, (name, values)) in self.curves.iter().enumerate() {
            let colour = COLOURS[place % COLOURS.len()];
            let mut points = String::new();
            for (&number, value) in self.over.iter().zip(values) {
                let y = bottom - HEIGHT * value / highest;
                write!(points, "{:.1},{y:.1} ", self.x(number))?;
            }
            let points = points.trim_end();
            writeln!(out, r#"<polyline points="{points}" fill="none" stroke="{colour}"/>"#)?;
            let (x, y) = (right + 10.0, top + 18.0 * (place as f64 + 1.0));
            writeln!(out, r#"<text x="{x}" y="{y}" fill="{colour}">{name}</text>"#)?;
        }
        Ok(())
    }

    fn x(&self, number: f64) -> f64 {
        let least = self.over.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.over.iter().copied().fold(0.0, f64::max);
        let whole = (most / least).ln().max(f64::MIN_POSITIVE);
        LEFT + WIDTH * (number / least).ln() / whole
    }
}

const LEFT: f64 = 90.0;
const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 200.0;
const COLOURS: [&str; 4] = ["#0060c0", "#c04000", "#008040", "#8000a0"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_curve_has_a_point_for_each_number_and_one_number_alone_is_drawn_too() {
        for over in [vec![1.0, 10.0, 1000.0], vec![7.0]] {
            let values = vec![2.5; over.len()];
            let curves = vec![("a".to_owned(), values.clone()), ("b".to_owned(), values)];
            let panel = Panel { title: "t".to_owned(), over: over.clone(), curves };
            let text = Plot(vec![panel]).to_string();
            assert_eq!(text.matches("<polyline").count(), 2);
            assert_eq!(text.matches(',').count(), 2 * over.len());
            assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        }
    }
}
