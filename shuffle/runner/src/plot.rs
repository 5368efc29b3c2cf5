//! Draws the rate and the depths of the queues over time, as an SVG file.

use std::{
    fmt::{self, Write as _},
    fs::{self, OpenOptions},
    path::Path,
};

use crate::{Error, samples::Sample};

/// Before the run: whether a file can be written; what it holds stays until then.
pub(crate) fn check(file: &Path) -> Result<(), Error> {
    // Opening a pipe waits for its reader, who would take the closing for the end.
    if fs::metadata(file).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        return Ok(());
    }
    let opened = OpenOptions::new().write(true).create(true).truncate(false).open(file);
    opened.map(drop).map_err(|error| Error::Plot(file.to_owned(), error))
}

pub(crate) fn write(file: &Path, plot: &Plot) -> Result<(), Error> {
    fs::write(file, plot.to_string()).map_err(|error| Error::Plot(file.to_owned(), error))
}

/// The samples of all ranks, summed up at some points of time.
pub(crate) struct Plot {
    seconds: f64,
    /// Messages per second, between each two points.
    rates: Vec<f64>,
    /// By queue, at each point but the first.
    depths: [Vec<f64>; 4],
}

impl Plot {
    /// `ranks`: what each rank has seen.
    #[expect(clippy::cast_precision_loss, reason = "drawn")]
    pub(crate) fn new(ranks: &[Vec<Sample>]) -> Self {
        let end_us = ranks.iter().flatten().map(|sample| sample.time_us).max().unwrap_or(0) as f64;
        let points: Vec<f64> =
            (0..=POINTS).map(|point| end_us * point as f64 / POINTS as f64).collect();
        let sum = |time: f64, figure: &dyn Fn(&Sample) -> u64| -> f64 {
            ranks.iter().map(|samples| at(samples, time, figure)).sum()
        };
        let step = (end_us / POINTS as f64 / 1e6).max(f64::MIN_POSITIVE);
        let delivered = |time| sum(time, &|sample| sample.delivered);
        let rates = points.windows(2).map(|pair| (delivered(pair[1]) - delivered(pair[0])) / step);
        let depth = |queue: usize| {
            points[1..].iter().map(|time| sum(*time, &|sample| sample.depths[queue])).collect()
        };
        Self { seconds: end_us / 1e6, rates: rates.collect(), depths: [0, 1, 2, 3].map(depth) }
    }
}

/// A figure at some time, on the straight line between the samples around it.
#[expect(clippy::cast_precision_loss, reason = "drawn")]
fn at(samples: &[Sample], time: f64, figure: &dyn Fn(&Sample) -> u64) -> f64 {
    let next = samples.partition_point(|sample| (sample.time_us as f64) < time);
    match (samples.get(next.wrapping_sub(1)), samples.get(next)) {
        (Some(before), Some(after)) => {
            let span = (after.time_us - before.time_us).max(1) as f64;
            let part = (time - before.time_us as f64) / span;
            figure(before) as f64 + part * (figure(after) as f64 - figure(before) as f64)
        }
        (Some(only), None) | (None, Some(only)) => figure(only) as f64,
        (None, None) => 0.0,
    }
}

impl fmt::Display for Plot {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            out,
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 560" font-family="sans-serif" font-size="12">"#
        )?;
        writeln!(out, r#"<rect width="800" height="560" fill="white"/>"#)?;
        self.panel(out, 20.0, "messages/s", &[("all ranks", "#000000", &self.rates)])?;
        let names = ["origin queues", "network queues", "relay queues", "delivery"];
        let curves: Vec<_> = (names.iter().zip(COLOURS).zip(&self.depths))
            .map(|((name, colour), values)| (*name, colour, values.as_slice()))
            .collect();
        self.panel(out, 290.0, "messages queued", &curves)?;
        writeln!(out, "</svg>")
    }
}

impl Plot {
    #[expect(clippy::cast_precision_loss, reason = "a few hundred points")]
    fn panel(
        &self,
        out: &mut fmt::Formatter<'_>,
        top: f64,
        title: &str,
        curves: &[(&str, &str, &[f64])],
    ) -> fmt::Result {
        let (left, width, height) = (90.0, 560.0, 200.0);
        let highest = curves.iter().flat_map(|curve| curve.2).copied().fold(1.0, f64::max);
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
        for (number, (name, colour, values)) in curves.iter().enumerate() {
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

    #[test]
    fn rates_are_summed_over_ranks_whatever_their_samples_times() {
        let line = |times: &[u64], per_us: u64| -> Vec<Sample> {
            let sample = |time: &u64| Sample {
                time_us: *time,
                delivered: time * per_us,
                depths: [1, 2, 3, per_us],
            };
            times.iter().map(sample).collect()
        };
        let plot = Plot::new(&[line(&[0, 500, 1000], 3), line(&[0, 10, 900, 1000], 4)]);
        assert!(plot.rates.iter().all(|rate| (rate - 7e6).abs() < 1.0), "{:?}", plot.rates);
        assert_eq!(plot.depths.each_ref().map(|depth| depth[100]), [2.0, 4.0, 6.0, 7.0]);
        let text = plot.to_string();
        assert_eq!(text.matches("<polyline").count(), 5);
        assert!(text.ends_with("</svg>\n") && !text.contains("NaN") && !text.contains("inf"));
    }

    #[test]
    fn nothing_seen_is_drawn_without_a_number_that_is_none() {
        for ranks in
            [vec![], vec![vec![]], vec![vec![Sample { time_us: 0, delivered: 0, depths: [0; 4] }]]]
        {
            let text = Plot::new(&ranks).to_string();
            assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        }
    }
}
