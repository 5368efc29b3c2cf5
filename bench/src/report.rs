//! Figures, written as a table for people or as one JSON object a line for programs.
//!
//! The JSON keys are those of [`Figure`], in this order; a key that does not apply is left out.

use std::borrow::Cow;
use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value;

use crate::error::{Context, Error};
use crate::measure::Subject;
use crate::stats::Summary;

/// One figure with its distribution and, where there is one, the limit beside it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Figure {
    #[serde(flatten)]
    subject: Subject,
    #[serde(flatten)]
    summary: Summary,
    #[serde(flatten)]
    beside: Option<Beside>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ring_ratio: Option<f64>,
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
        Figure { subject, summary, beside: None, ring_ratio: None }
    }

    /// A figure that was counted once.
    pub(crate) fn counted(subject: Subject, value: f64) -> Figure {
        let (median, p99, min, max) = (value, value, value, value);
        Figure::new(subject, Summary { median, p99, min, max, repetitions: 1 })
    }

    /// What it is called.
    pub(crate) fn name(&self) -> &str {
        &self.subject.figure
    }

    /// The value that half of its repetitions reach.
    pub(crate) fn median(&self) -> f64 {
        self.summary.median
    }

    /// The same figure with its limit, measured in turns with it; the ratio is of the medians.
    pub(crate) fn beside(mut self, limit: &Figure) -> Figure {
        self.beside = Some(Beside {
            limit: limit.subject.figure.clone(),
            limit_median: limit.summary.median,
            ratio: self.summary.median / limit.summary.median,
        });
        self
    }

    /// The same with its ratio to `ring_rate`, where another limit is beside it.
    pub(crate) fn in_rings(self, ratio: f64) -> Figure {
        Figure { ring_ratio: Some(ratio), ..self }
    }

    /// The table's columns, as words: what the JSON object has, numbers shortened.
    fn row(&self) -> Result<[String; COLUMNS.len()], Error> {
        let object = serde_json::to_value(self)?;
        Ok(COLUMNS.map(|key| match &object[key] {
            Value::Null => String::new(),
            Value::String(word) => word.clone(),
            Value::Number(number) if number.is_f64() => {
                number.as_f64().map(significant).unwrap_or_default()
            }
            other => other.to_string(),
        }))
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
    let rows = figures.iter().map(Figure::row).collect::<Result<Vec<_>, Error>>()?;
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
            "segments" | "size" | "inflight" | "peers" | "median" | "p99" | "min" | "max"
            | "repetitions" | "limit_median" | "ratio" | "ring_ratio" => {
                format!("{cell:>width$}  ")
            }
            _ => format!("{cell:<width$}  "),
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
const COLUMNS: [&str; 21] = [
    "figure",
    "url",
    "via",
    "op",
    "memory",
    "segments",
    "caches",
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
    "ring_ratio",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{Caches, Memory, Op, Unit, Wait};

    fn summary() -> Summary {
        Summary { median: 2.5, p99: 4.0, min: 1.0, max: 5.0, repetitions: 9 }
    }

    fn bare() -> Figure {
        Figure::new(Subject::new("memcpy", Unit::MebibytesPerSecond), summary())
    }

    #[test]
    fn keys_that_do_not_apply_are_left_out() {
        let mut text = Vec::new();
        json(&mut text, &[bare()]).expect("a vector takes all");
        assert_eq!(
            String::from_utf8(text).expect("text"),
            "{\"figure\":\"memcpy\",\"unit\":\"MiB/s\",\"median\":2.5,\"p99\":4.0,\"min\":1.0,\
             \"max\":5.0,\"repetitions\":9}\n"
        );
    }

    #[test]
    fn every_key_of_the_format_is_there_when_it_applies() {
        let subject = Subject {
            url: Some("sm://".to_owned()),
            via: Some("sm".to_owned()),
            op: Some(Op::Pull),
            memory: Some(Memory::Heap),
            segments: Some(1),
            caches: Some(Caches::Hot),
            peers: Some(1),
            ..Subject::round_trip("call", 8, Wait::Spin)
        };
        let figure = Figure::new(subject, summary());
        let limit = Summary { median: 2.0, ..summary() };
        let subject = Subject::round_trip("cache_line_round_trip", 8, Wait::Spin);
        let figure = figure.beside(&Figure::new(subject, limit)).in_rings(0.5);
        let text = serde_json::to_string(&figure).expect("texts and numbers");
        let mut rest = text.as_str();
        for key in COLUMNS {
            let at = rest.find(&format!("\"{key}\":")).unwrap_or_else(|| panic!("{key}: {text}"));
            rest = &rest[at + 1..];
        }
        let value: serde_json::Value =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(value.as_object().map(serde_json::Map::len), Some(COLUMNS.len()));
        assert_eq!((&value["unit"], &value["wait"]), (&"us".into(), &"spin".into()));
        assert_eq!(value["limit"], "cache_line_round_trip");
        assert_eq!((&value["limit_median"], &value["ratio"]), (&2.0.into(), &1.25.into()));
    }

    #[test]
    fn a_table_leaves_out_empty_columns_and_aligns_the_others() {
        let mut text = Vec::new();
        table(&mut text, &[bare()]).expect("a vector takes all");
        assert_eq!(
            String::from_utf8(text).expect("text"),
            "figure  unit   median   p99   min   max  repetitions\n\
             memcpy  MiB/s    2.50  4.00  1.00  5.00            9\n"
        );
    }
}
