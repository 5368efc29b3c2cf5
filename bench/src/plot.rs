//! Draws figures over a number of something, as an SVG file.

use std::fmt;

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
        let highest = round_up(highest);
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
            writeln!(out, r#"<text x="{x}" y="{y}" text-anchor="end">{value}</text>"#)?;
        }
        for &number in &self.over {
            let (x, y) = (self.x(number), bottom + 18.0);
            writeln!(out, r#"<text x="{x:.1}" y="{y}" text-anchor="middle">{number}</text>"#)?;
        }
        for (place, (name, values)) in self.curves.iter().enumerate() {
            let (colour, dashes) = STYLES[place % STYLES.len()];
            let points: Vec<(f64, f64)> = self
                .over
                .iter()
                .zip(values)
                .map(|(&number, value)| (self.x(number), bottom - HEIGHT * value / highest))
                .collect();
            let line: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let line = line.join(" ");
            let (x, y) = (right + 10.0, top + 18.0 * (place as f64 + 1.0));
            writeln!(
                out,
                r#"<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5" stroke-dasharray="{dashes}"/>"#
            )?;
            for (x, y) in points {
                writeln!(out, r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{colour}"/>"#)?;
            }
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
/// Colours and dashes: a curve that lies under another one is seen through its gaps.
const STYLES: [(&str, &str); 4] =
    [("#0060c0", "none"), ("#c04000", "7 5"), ("#008040", "2 3"), ("#8000a0", "12 4")];

/// The next round number, whose half needs few digits, too.
fn round_up(highest: f64) -> f64 {
    let ten = 10_f64.powf(highest.log10().floor());
    let steps = [1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0];
    let step = steps.into_iter().find(|step| step * ten >= highest * (1.0 - 1e-9));
    // Of a power below one, a product has digits that are nobody's.
    let rounded = step.unwrap_or(10.0) * ten;
    if ten < 1.0 { (rounded * 1e9).round() / 1e9 } else { rounded }
}

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
            assert_eq!(text.matches("<circle").count(), 2 * over.len());
            assert_eq!(text.matches(',').count(), 2 * over.len());
            assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        }
    }

    #[test]
    fn the_axis_ends_at_a_round_number_that_no_curve_is_above() {
        for (highest, top) in
            [(25_354.0, 30_000.0), (1994.1, 2000.0), (64.0, 80.0), (0.031, 0.04), (10.0, 10.0)]
        {
            let rounded = round_up(highest);
            assert!(rounded >= highest);
            assert_eq!(format!("{rounded}"), format!("{top}"));
            assert!(format!("{}", rounded / 2.0).len() <= 5);
        }
    }

    #[test]
    fn of_two_curves_that_are_the_same_both_are_seen() {
        let curves = ["a", "b"].map(|name| (name.to_owned(), vec![1.0, 2.0])).to_vec();
        let text =
            Plot(vec![Panel { title: "t".to_owned(), over: vec![1.0, 2.0], curves }]).to_string();
        assert!(text.contains(r#"stroke-dasharray="none""#));
        assert_eq!(text.matches("stroke-dasharray").count(), 2);
        assert_eq!(text.matches(r#"stroke-dasharray="none""#).count(), 1);
    }
}
