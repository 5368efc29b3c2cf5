//! Figures, written as a table for people or as one JSON object a line for programs.
//!
//! The JSON keys are those of [`Figure`], in this order; a key that does not apply is left out.

use std::borrow::Cow;
use std::io::{self, Write};

use serde::Serialize;

use crate::error::{Context, Error};
use crate::measure::{Subject, Unit, Wait};
use crate::stats::Summary;

/// One figure with its distribution and, where there is one, the limit beside it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Figure {
    figure: Cow<'static, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inflight: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    wait: Option<Wait>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peers: Option<u64>,
    unit: Unit,
    median: f64,
    p99: f64,
    min: f64,
    max: f64,
    repetitions: u64,
    #[serde(flatten)]
    beside: Option<Beside>,
}

/// The limit that a figure is held against.
#[derive(Debug, Clone, Serialize)]
struct Beside {
    limit: Cow<'static, str>,
    limit_median: f64,
    ratio: f64,
}

impl Figure {
    /// A figure without a limit.
    pub(crate) fn new(subject: Subject, summary: Summary) -> Figure {
        Figure {
            figure: subject.figure,
            url: subject.url,
            size: subject.size,
            inflight: subject.inflight,
            wait: subject.wait,
            peers: subject.peers,
            unit: subject.unit,
            median: summary.median,
            p99: summary.p99,
            min: summary.min,
            max: summary.max,
            repetitions: summary.repetitions,
            beside: None,
        }
    }

    /// A figure that was counted once.
    pub(crate) fn counted(subject: Subject, value: f64) -> Figure {
        let (median, p99, min, max) = (value, value, value, value);
        Figure::new(subject, Summary { median, p99, min, max, repetitions: 1 })
    }

    /// The same figure with its limit, measured in turns with it; the ratio is of the medians.
    pub(crate) fn beside(mut self, limit: &Figure) -> Figure {
        self.beside = Some(Beside {
            limit: limit.figure.clone(),
            limit_median: limit.median,
            ratio: self.median / limit.median,
        });
        self
    }

    /// The table's columns, as words.
    fn row(&self) -> [String; COLUMNS.len()] {
        let number = |n: Option<u64>| n.map(|n| n.to_string()).unwrap_or_default();
        let beside = |f: fn(&Beside) -> String| self.beside.as_ref().map(f).unwrap_or_default();
        [
            self.figure.to_string(),
            self.url.clone().unwrap_or_default(),
            number(self.size),
            number(self.inflight),
            self.wait.map(Wait::as_str).unwrap_or_default().to_owned(),
            number(self.peers),
            self.unit.as_str().to_owned(),
            significant(self.median),
            significant(self.p99),
            significant(self.min),
            significant(self.max),
            self.repetitions.to_string(),
            beside(|b| b.limit.to_string()),
            beside(|b| significant(b.limit_median)),
            beside(|b| significant(b.ratio)),
        ]
    }
}

/// Writes figures to standard output, as `--json` says.
pub(crate) fn print(json_lines: bool, figures: &[Figure]) -> Result<(), Error> {
    let out = &mut io::stdout().lock();
    if json_lines { json(out, figures) } else { table(out, figures) }
}

/// Writes every figure as one JSON object a line.
pub(crate) fn json(out: &mut dyn Write, figures: &[Figure]) -> Result<(), Error> {
    for figure in figures {
        writeln!(out, "{}", serde_json::to_string(figure)?).context("write")?;
    }
    out.flush().context("write")
}

/// Writes a table; a column that is empty in every row is left out.
pub(crate) fn table(out: &mut dyn Write, figures: &[Figure]) -> Result<(), Error> {
    let rows: Vec<_> = figures.iter().map(Figure::row).collect();
    let width = |c: usize| rows.iter().map(|row| row[c].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..COLUMNS.len())
        .map(|c| if width(c) == 0 { 0 } else { width(c).max(COLUMNS[c].len()) })
        .collect();
    line(out, &COLUMNS.map(str::to_owned), &widths).context("write")?;
    for row in &rows {
        line(out, row, &widths).context("write")?;
    }
    out.flush().context("write")
}

/// One line: words to the left, numbers to the right.
fn line(out: &mut dyn Write, cells: &[String], widths: &[usize]) -> io::Result<()> {
    let mut text = String::new();
    for (c, (cell, &width)) in cells.iter().zip(widths).enumerate().filter(|(_, (_, w))| **w > 0) {
        let cell = match COLUMNS[c] {
            "figure" | "url" | "wait" | "unit" | "limit" => format!("{cell:<width$}  "),
            _ => format!("{cell:>width$}  "),
        };
        text.push_str(&cell);
    }
    writeln!(out, "{}", text.trim_end())
}

/// Three significant digits, or all digits of the integer part.
fn significant(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// The keys, in the order of [`Figure`].
const COLUMNS: [&str; 15] = [
    "figure",
    "url",
    "size",
    "inflight",
    "wait",
    "peers",
    "unit",
    "median",
    "p99",
    "min",
    "max",
    "repetitions",
    "limit",
    "limit_median",
    "ratio",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn summary() -> Summary {
        Summary { median: 2.5, p99: 4.0, min: 1.0, max: 5.0, repetitions: 9 }
    }

    fn bare() -> Figure {
        Figure::new(Subject::new("memcpy", Unit::MebibytesPerSecond), summary())
    }

    #[test]
    fn keys_that_do_not_apply_are_left_out() {
        let mut text = Vec::new();
        json(&mut text, &[bare()]).unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "{\"figure\":\"memcpy\",\"unit\":\"MiB/s\",\"median\":2.5,\"p99\":4.0,\"min\":1.0,\
             \"max\":5.0,\"repetitions\":9}\n"
        );
    }

    #[test]
    fn every_key_of_the_format_is_there_when_it_applies() {
        let figure = Figure {
            url: Some("sm://".to_owned()),
            size: Some(8),
            inflight: Some(1),
            wait: Some(Wait::Spin),
            peers: Some(1),
            unit: Unit::Microseconds,
            ..bare()
        };
        let limit = Summary { median: 2.0, ..summary() };
        let subject = Subject::round_trip("cache_line_round_trip", 8, Wait::Spin);
        let figure = figure.beside(&Figure::new(subject, limit));
        let text = serde_json::to_string(&figure).unwrap();
        let mut rest = text.as_str();
        for key in COLUMNS {
            let at = rest.find(&format!("\"{key}\":")).unwrap_or_else(|| panic!("{key}: {text}"));
            rest = &rest[at + 1..];
        }
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value.as_object().unwrap().len(), COLUMNS.len());
        assert_eq!((&value["unit"], &value["wait"]), (&"us".into(), &"spin".into()));
        assert_eq!(value["limit"], "cache_line_round_trip");
        assert_eq!((&value["limit_median"], &value["ratio"]), (&2.0.into(), &1.25.into()));
    }

    #[test]
    fn a_table_leaves_out_empty_columns_and_aligns_the_others() {
        let mut text = Vec::new();
        table(&mut text, &[bare()]).unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "figure  unit   median   p99   min   max  repetitions\n\
             memcpy  MiB/s    2.50  4.00  1.00  5.00            9\n"
        );
    }
}
