//! The table for people, line by line as it comes, or one JSON object a line.

use std::io::Write;

use serde_json::{Map, Value};

use super::claim::{Claim, Judged, Quantity, Verdict, decimals};
use crate::error::{Context, Error};

/// What a line has come to.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Outcome {
    /// It was measured.
    Judged(Judged),
    /// It was not, and why.
    NotMeasured(String),
}

/// Prints lines and counts them.
pub(super) struct Printer<W> {
    out: W,
    json: bool,
    aims: u32,
    musts: u32,
    missed: u32,
    not_measured: u32,
}

impl<W: Write> Printer<W> {
    /// Nothing printed yet.
    pub(super) fn new(out: W, json: bool) -> Printer<W> {
        Printer { out, json, aims: 0, musts: 0, missed: 0, not_measured: 0 }
    }

    /// Where the cores are, and the heads of the columns.
    pub(super) fn start(&mut self, placement: &str) -> Result<(), Error> {
        if self.json {
            return Ok(());
        }
        writeln!(self.out, "placement at the start: {placement}").context("write")?;
        self.row(&HEADS.map(str::to_owned))
    }

    /// One line.
    pub(super) fn line(
        &mut self,
        claim: &Claim,
        command: &str,
        outcome: &Outcome,
    ) -> Result<(), Error> {
        *match outcome {
            Outcome::Judged(judged) => match judged.verdict() {
                Verdict::Aim => &mut self.aims,
                Verdict::Must => &mut self.musts,
                Verdict::Missed => &mut self.missed,
            },
            Outcome::NotMeasured(_) => &mut self.not_measured,
        } += 1;
        if self.json {
            let object = object(claim, command, outcome);
            writeln!(self.out, "{}", Value::Object(object)).context("write")?;
            return self.out.flush().context("write");
        }
        self.row(&cells(claim, command, outcome))
    }

    /// How many lines met what, and where the cores are now.
    pub(super) fn end(&mut self, placement: &str) -> Result<(), Error> {
        if self.json {
            return Ok(());
        }
        let (aims, musts, missed) = (self.aims, self.musts, self.missed);
        let left = self.not_measured;
        writeln!(
            self.out,
            "placement at the end: {placement}\n\
             {aims} lines reach their aim, {musts} their must, {missed} miss it; {left} not measured"
        )
        .context("write")
    }

    fn row(&mut self, cells: &[String; HEADS.len()]) -> Result<(), Error> {
        let [.., last] = cells;
        let mut text = String::new();
        for (cell, width) in cells.iter().zip(WIDTHS) {
            text.push_str(&format!("{cell:width$}  "));
        }
        text.push_str(last);
        writeln!(self.out, "{}", text.trim_end()).context("write")?;
        self.out.flush().context("write")
    }
}

fn cells(claim: &Claim, command: &str, outcome: &Outcome) -> [String; HEADS.len()] {
    let (name, what) = (claim.name.clone(), claim.what.clone());
    let judged = match outcome {
        Outcome::Judged(judged) => judged,
        Outcome::NotMeasured(why) => {
            let (why, empty) = (format!("not measured: {why}"), String::new);
            return [
                name,
                what,
                empty(),
                empty(),
                empty(),
                empty(),
                empty(),
                why,
                command.to_owned(),
            ];
        }
    };
    let promised = |bound: Option<f64>| {
        bound.map_or_else(|| "-".to_owned(), |value| amount(value, &judged.unit))
    };
    let limit = judged.limit.as_ref();
    [
        name,
        what,
        quantity(&judged.measured),
        limit.map(|(name, limit)| format!("{name} {}", quantity(limit))).unwrap_or_default(),
        judged.formula.clone(),
        promised(judged.must),
        promised(judged.aim),
        word(judged.verdict()).to_owned(),
        command.to_owned(),
    ]
}

/// The same as keys; what does not apply is left out.
fn object(claim: &Claim, command: &str, outcome: &Outcome) -> Map<String, Value> {
    let mut keys = Map::new();
    let mut set = |key: &str, value: Value| keys.insert(key.to_owned(), value);
    set("line", claim.name.clone().into());
    set("what", claim.what.clone().into());
    match outcome {
        Outcome::Judged(judged) => {
            set("measured", judged.measured.value.into());
            set("unit", judged.measured.unit.clone().into());
            if let Some((name, limit)) = &judged.limit {
                set("limit", name.clone().into());
                set("limit_median", limit.value.into());
                set("limit_unit", limit.unit.clone().into());
            }
            set("formula", judged.formula.clone().into());
            set("judged", judged.value.into());
            judged.must.map(|must| set("must", must.into()));
            judged.aim.map(|aim| set("aim", aim.into()));
            set("met", word(judged.verdict()).into());
        }
        Outcome::NotMeasured(why) => {
            set("not_measured", why.clone().into());
        }
    }
    set("command", command.into());
    keys
}

/// The last but one column.
fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Aim => "aim",
        Verdict::Must => "must",
        Verdict::Missed => "MISSED",
    }
}

fn quantity(quantity: &Quantity) -> String {
    amount(quantity.value, &quantity.unit)
}

/// A number for people: rates in millions, and no unit for a ratio.
fn amount(value: f64, unit: &str) -> String {
    match unit {
        "" | "ratio" => decimals(value),
        "1/s" if value >= 1e5 => format!("{} M/s", decimals(value / 1e6)),
        _ => format!("{} {unit}", decimals(value)),
    }
}

const HEADS: [&str; 9] =
    ["name", "what", "measured", "limit", "ratio or formula", "must", "aim", "met?", "command"];
/// Of all columns but the last.
const WIDTHS: [usize; 8] = [NAME, 46, 13, 26, 38, 12, 12, 6];
/// Of the names.
pub(super) const NAME: usize = 22;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Better;

    fn claim() -> Claim {
        Claim::new("call/16", "calls", |_| None)
    }

    fn judged(value: f64) -> Outcome {
        let rate = |value| Quantity { value, unit: "1/s".to_owned() };
        let judged = Judged::figure(rate(value), "6 M/s", Better::Larger, 6e6, 12e6);
        Outcome::Judged(judged.beside("ring_rate", rate(66e6)))
    }

    #[test]
    fn a_line_has_what_was_measured_promised_and_met() {
        let mut printer = Printer::new(Vec::new(), false);
        printer.start("near").expect("a vector takes all");
        printer.line(&claim(), "hg-perf rate", &judged(5e6)).expect("a vector takes all");
        printer.line(&claim(), "hg-perf rate", &judged(7e6)).expect("a vector takes all");
        printer
            .line(&claim(), "hg-perf rate", &Outcome::NotMeasured("why".into()))
            .expect("a vector takes all");
        printer.end("far").expect("a vector takes all");
        let text = String::from_utf8(printer.out).expect("text");
        let words = |line: usize| {
            text.lines().nth(line).unwrap_or_default().split_whitespace().collect::<Vec<_>>()
        };
        assert_eq!(
            words(2).join(" "),
            "call/16 calls 5.000 M/s ring_rate 66.00 M/s 6 M/s 6.000 M/s 12.00 M/s MISSED hg-perf rate"
        );
        assert!(words(3).contains(&"must"), "{text}");
        assert!(text.contains("not measured: why"), "{text}");
        assert!(
            text.ends_with("0 lines reach their aim, 1 their must, 1 miss it; 1 not measured\n")
        );
    }

    #[test]
    fn json_has_the_numbers_as_they_are_and_leaves_out_what_does_not_apply() {
        let mut printer = Printer::new(Vec::new(), true);
        printer.start("near").expect("a vector takes all");
        printer.line(&claim(), "hg-perf rate", &judged(13e6)).expect("a vector takes all");
        printer
            .line(&claim(), "hg-perf rate", &Outcome::NotMeasured("why".into()))
            .expect("a vector takes all");
        printer.end("near").expect("a vector takes all");
        let text = String::from_utf8(printer.out).expect("text");
        let lines: Vec<Value> = text
            .lines()
            .map(|line| {
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"))
            })
            .collect();
        assert_eq!((&lines[0]["line"], &lines[0]["met"]), (&"call/16".into(), &"aim".into()));
        assert_eq!((&lines[0]["must"], &lines[0]["measured"]), (&6e6.into(), &13e6.into()));
        assert_eq!((&lines[1]["not_measured"], lines[1].get("met")), (&"why".into(), None));
    }
}
