//! Draws what all ranks did over time, as an SVG file.

use std::{
    fmt::{self, Write as _},
    fs::{self, OpenOptions},
    io,
    path::Path,
};

/// Before the run: whether a file can be written; what it holds stays until then.
///
/// # Errors
/// Why not.
pub fn check(file: &Path) -> io::Result<()> {
    // Opening a pipe waits for its reader, who would take the closing for the end.
    if fs::metadata(file).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        return Ok(());
    }
    OpenOptions::new().write(true).create(true).truncate(false).open(file).map(drop)
}

/// Something that was seen at some time.
pub trait Timed {
    /// Since the timed run began.
    fn time_us(&self) -> u64;
}

/// Samples of all ranks, summed up at some points of time.
#[derive(Debug)]
pub struct Sums<'a, S> {
    ranks: &'a [Vec<S>],
    end_us: u64,
}

impl<'a, S: Timed> Sums<'a, S> {
    /// `ranks`: what each rank has seen.
    pub fn new(ranks: &'a [Vec<S>]) -> Self {
        Self { ranks, end_us: ranks.iter().flatten().map(S::time_us).max().unwrap_or(0) }
    }

    /// Of the whole run.
    #[expect(clippy::cast_precision_loss, reason = "drawn")]
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.end_us as f64 / 1e6
    }

    /// A figure, at each point but the first.
    pub fn values(&self, figure: impl Fn(&S) -> u64) -> Vec<f64> {
        self.points(figure).split_off(1)
    }

    /// How much a figure grows in a second, between each two points.
    #[expect(clippy::cast_precision_loss, reason = "drawn")]
    pub fn rates(&self, figure: impl Fn(&S) -> u64) -> Vec<f64> {
        let step = (self.seconds() / POINTS as f64).max(f64::MIN_POSITIVE);
        self.points(figure).windows(2).map(|pair| (pair[1] - pair[0]) / step).collect()
    }

    #[expect(clippy::cast_precision_loss, reason = "drawn")]
    fn points(&self, figure: impl Fn(&S) -> u64) -> Vec<f64> {
        let times = (0..=POINTS).map(|point| self.end_us as f64 * point as f64 / POINTS as f64);
        times
            .map(|time| self.ranks.iter().map(|samples| at(samples, time, &figure)).sum())
            .collect()
    }
}

/// A figure at some time, on the straight line between the samples around it.
#[expect(clippy::cast_precision_loss, reason = "drawn")]
fn at<S: Timed>(samples: &[S], time: f64, figure: &impl Fn(&S) -> u64) -> f64 {
    let next = samples.partition_point(|sample| (sample.time_us() as f64) < time);
    match (samples.get(next.wrapping_sub(1)), samples.get(next)) {
        (Some(before), Some(after)) => {
            let span = (after.time_us() - before.time_us()).max(1) as f64;
            let part = (time - before.time_us() as f64) / span;
            figure(before) as f64 + part * (figure(after) as f64 - figure(before) as f64)
        }
        (Some(only), None) | (None, Some(only)) => figure(only) as f64,
        (None, None) => 0.0,
    }
}

/// Curves under one title.
#[derive(Debug)]
pub struct Panel {
    /// What the curves count.
    pub title: &'static str,
    /// Each with its name.
    pub curves: Vec<(&'static str, Vec<f64>)>,
}

/// Panels, one below the other.
#[derive(Debug)]
pub struct Plot {
    /// Of the whole run.
    pub seconds: f64,
    /// From the top.
    pub panels: Vec<Panel>,
}

impl fmt::Display for Plot {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let height = 20 + 270 * self.panels.len();
        writeln!(
            out,
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 {height}" font-family="sans-serif" font-size="12">"#
        )?;
        writeln!(out, r#"<rect width="800" height="{height}" fill="white"/>"#)?;
        let mut top = 20.0;
        for panel in &self.panels {
            self.panel(out, top, panel)?;
            top += 270.0;
        }
        writeln!(out, "</svg>")
    }
}

impl Plot {
    #[expect(clippy::cast_precision_loss, reason = "a few hundred points")]
    fn panel(
        &self,
        out: &mut fmt::Formatter<'_>,
        top: f64,
        Panel { title, curves }: &Panel,
    ) -> fmt::Result {
        let (left, width, height) = (90.0, 560.0, 200.0);
        let highest = curves.iter().flat_map(|curve| &curve.1).copied().fold(1.0, f64::max);
        let (bottom, right) = (top + height, left + width);
        writeln!(
            out,
            r##"<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="#888888"/>"##
        )?;
        for part in [0.0, 0.5, 1.0] {
            let (x, y) = (left + width * part, bottom - height * part);
            let (time, value) = (self.seconds * part, highest * part);
            writeln!(
                out,
                r#"<text x="{x}" y="{}" text-anchor="middle">{time:.2} s</text>"#,
                bottom + 18.0
            )?;
            writeln!(
                out,
                r#"<text x="{}" y="{}" text-anchor="end">{value:.0}</text>"#,
                left - 6.0,
                y + 4.0
            )?;
        }
        writeln!(out, r#"<text x="{}" y="{top}" font-weight="bold">{title}</text>"#, right + 10.0)?;
        for (number, (name, values)) in curves.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            let mut points = String::new();
            for (at, value) in values.iter().enumerate() {
                let x = left + width * (at as f64 + 0.5) / values.len() as f64;
                let y = bottom - height * value / highest;
                write!(points, "{x:.1},{y:.1} ")?;
            }
            writeln!(
                out,
                r#"<polyline points="{}" fill="none" stroke="{colour}"/>"#,
                points.trim_end()
            )?;
            let y = top + 20.0 * (number as f64 + 1.0);
            writeln!(out, r#"<text x="{}" y="{y}" fill="{colour}">{name}</text>"#, right + 10.0)?;
        }
        Ok(())
    }
}

/// Points of time that are drawn.
const POINTS: usize = 200;
const COLOURS: [&str; 4] = ["#0060c0", "#c04000", "#008040", "#8000a0"];

#[cfg(test)]
mod tests {
    use super::*;

    struct Sample(u64, u64);

    impl Timed for Sample {
        fn time_us(&self) -> u64 {
            self.0
        }
    }

    fn draw(ranks: &[Vec<Sample>]) -> (Vec<f64>, Vec<f64>, String) {
        let sums = Sums::new(ranks);
        let (values, rates) = (sums.values(|it| it.1), sums.rates(|it| it.1));
        let panel = |values| Panel { title: "messages", curves: vec![("all ranks", values)] };
        let panels = vec![panel(rates.clone()), panel(values.clone())];
        (values, rates, Plot { seconds: sums.seconds(), panels }.to_string())
    }

    #[test]
    fn figures_are_summed_over_ranks_whatever_their_samples_times() {
        let line = |times: &[u64], per_us: u64| -> Vec<Sample> {
            times.iter().map(|time| Sample(*time, time * per_us)).collect()
        };
        let ranks = [line(&[0, 500, 1000], 3), line(&[0, 10, 900, 1000], 4)];
        let (values, rates, text) = draw(&ranks);
        assert!(rates.iter().all(|rate| (rate - 7e6).abs() < 1.0), "{rates:?}");
        assert_eq!((values.len(), values[99].round()), (200, 3500.0));
        assert_eq!(text.matches("<polyline").count(), 2);
        assert!(text.ends_with("</svg>\n") && !text.contains("NaN") && !text.contains("inf"));
    }

    #[test]
    fn nothing_seen_is_drawn_without_a_number_that_is_none() {
        for ranks in [vec![], vec![vec![]], vec![vec![Sample(0, 0)]]] {
            let (_, _, text) = draw(&ranks);
            assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        }
    }
}
