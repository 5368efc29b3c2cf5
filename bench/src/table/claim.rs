//! What a line of the table claims, and the figures that it is judged by.

use serde_json::Value;

use crate::stats::Better;

/// Commands that are run for one or several lines.
pub(super) struct Run {
    /// One after the other.
    pub(super) commands: Vec<Plain>,
    /// The lines.
    pub(super) claims: Vec<Claim>,
}

/// A plain `hg-perf` command.
pub(super) struct Plain {
    words: String,
    /// As many as its lines need; `None` where it knows no repetitions.
    repetitions: Option<u32>,
}

/// One line of the table.
pub(super) struct Claim {
    /// Chosen by it.
    pub(super) name: String,
    /// What is measured, in words.
    pub(super) what: String,
    /// `None` where the figures are not there.
    pub(super) judge: Judge,
}

/// Holds figures against what was promised.
pub(super) type Judge = Box<dyn Fn(&Figures) -> Option<Judged>>;

/// A figure held against what was promised of it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Judged {
    /// The figure and its unit.
    pub(super) measured: Quantity,
    /// What this machine allows, and the name of that limit.
    pub(super) limit: Option<(String, Quantity)>,
    /// How the three below come about.
    pub(super) formula: String,
    /// What is held against the next two: the figure itself, or its ratio to the limit.
    pub(super) value: f64,
    /// Unit of `value`, `must` and `aim`; none for a ratio.
    pub(super) unit: String,
    /// At least as good as this.
    pub(super) must: Option<f64>,
    /// Better still.
    pub(super) aim: Option<f64>,
    /// Which side of them is good.
    pub(super) better: Better,
}

/// A number and what it counts.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Quantity {
    /// The number.
    pub(super) value: f64,
    /// Its unit, as `--json` has it.
    pub(super) unit: String,
}

/// What a figure comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Must and aim are met.
    Aim,
    /// The must is met.
    Must,
    /// It is not.
    Missed,
}

impl Run {
    /// One command for one line.
    pub(super) fn one(command: Plain, claim: Claim) -> Run {
        Run { commands: vec![command], claims: vec![claim] }
    }

    /// What reproduces it in a shell.
    pub(super) fn text(&self, repetitions: Option<u32>) -> String {
        let line = |command: &Plain| format!("hg-perf {}", command.words(repetitions).join(" "));
        self.commands.iter().map(line).collect::<Vec<_>>().join(" && ")
    }
}

impl Plain {
    /// A command whose figures are repeated so often by default.
    pub(super) fn repeated(words: impl Into<String>, repetitions: u32) -> Plain {
        Plain { words: words.into(), repetitions: Some(repetitions) }
    }

    /// A command that counts.
    pub(super) fn once(words: impl Into<String>) -> Plain {
        Plain { words: words.into(), repetitions: None }
    }

    /// Its words; with as many repetitions as are asked for, where it has any.
    pub(super) fn words(&self, repetitions: Option<u32>) -> Vec<String> {
        let mut words: Vec<String> = self.words.split(' ').map(str::to_owned).collect();
        if let Some(default) = self.repetitions {
            let repetitions = repetitions.unwrap_or(default).to_string();
            words.extend(["--repetitions".to_owned(), repetitions]);
        }
        words
    }
}

impl Claim {
    /// A line.
    pub(super) fn new(
        name: impl Into<String>,
        what: impl Into<String>,
        judge: impl Fn(&Figures) -> Option<Judged> + 'static,
    ) -> Claim {
        Claim { name: name.into(), what: what.into(), judge: Box::new(judge) }
    }
}

/// The lines that commands have printed.
pub(super) struct Figures(pub(super) Vec<Value>);

impl Figures {
    /// The first line of a figure.
    pub(super) fn of(&self, figure: &str) -> Option<&Value> {
        self.all(figure).next()
    }

    /// The first line of a figure with this key.
    pub(super) fn with(&self, figure: &str, key: &str, value: &Value) -> Option<&Value> {
        self.all(figure).find(|line| line[key] == *value)
    }

    /// Every line of a figure.
    pub(super) fn all(&self, figure: &str) -> impl Iterator<Item = &Value> {
        self.0.iter().filter(move |line| line["figure"] == *figure)
    }
}

impl Quantity {
    /// The median of a line.
    pub(super) fn median(line: &Value) -> Option<Quantity> {
        Quantity::of(line, "median")
    }

    /// Another number of it.
    pub(super) fn of(line: &Value, key: &str) -> Option<Quantity> {
        let unit = line["unit"].as_str()?.to_owned();
        Some(Quantity { value: line[key].as_f64()?, unit })
    }
}

impl Judged {
    /// A figure beside its limit: the ratio of the two is judged.
    pub(super) fn ratio(line: &Value, better: Better, must: f64, aim: f64) -> Option<Judged> {
        let limit = line["limit"].as_str()?.to_owned();
        Some(Judged {
            measured: Quantity::median(line)?,
            formula: format!("{} x {limit}", decimals(line["ratio"].as_f64()?)),
            limit: Some((limit, Quantity::of(line, "limit_median")?)),
            value: line["ratio"].as_f64()?,
            unit: String::new(),
            must: Some(must),
            aim: Some(aim),
            better,
        })
    }

    /// The same where the command has also printed the ratios round by round, as the figure `ratios`: their
    /// median is judged.
    pub(super) fn rounds(
        figures: &Figures,
        line: &Value,
        ratios: &str,
        better: Better,
        must: f64,
        aim: f64,
    ) -> Option<Judged> {
        let judged = Judged::ratio(line, better, must, aim)?;
        let value = figures.of(ratios)?["median"].as_f64()?;
        let (limit, _) = judged.limit.as_ref()?;
        Some(Judged { formula: format!("{} x {limit}", decimals(value)), value, ..judged })
    }

    /// A figure judged by itself; `formula` says where must and aim come from.
    pub(super) fn figure(
        measured: Quantity,
        formula: impl Into<String>,
        better: Better,
        must: f64,
        aim: impl Into<Option<f64>>,
    ) -> Judged {
        Judged {
            limit: None,
            formula: formula.into(),
            value: measured.value,
            unit: measured.unit.clone(),
            measured,
            must: Some(must),
            aim: aim.into(),
            better,
        }
    }

    /// The same with the limit that the formula is made of.
    pub(super) fn beside(self, name: &str, limit: Quantity) -> Judged {
        Judged { limit: Some((name.to_owned(), limit)), ..self }
    }

    /// What it comes to. A line without a must is a wish.
    pub(super) fn verdict(&self) -> Verdict {
        let reached = |promised: f64| match self.better {
            Better::Smaller => self.value <= promised,
            Better::Larger => self.value >= promised,
        };
        match (self.must, self.aim) {
            (Some(must), _) if !reached(must) => Verdict::Missed,
            (_, Some(aim)) if reached(aim) => Verdict::Aim,
            _ => Verdict::Must,
        }
    }
}

/// A number with three digits that count.
pub(super) fn decimals(value: f64) -> String {
    match value.abs() {
        v if v >= 1e4 => format!("{value:.0}"),
        v if v >= 100.0 => format!("{value:.1}"),
        v if v >= 10.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn line() -> Value {
        json!({"figure": "bandwidth", "unit": "MiB/s", "median": 95.0, "limit": "cma",
               "limit_median": 100.0, "ratio": 0.95})
    }

    #[test]
    fn a_ratio_is_judged_from_the_side_that_is_better() {
        let verdict = |better, must, aim| {
            Judged::ratio(&line(), better, must, aim).expect("the line has a limit").verdict()
        };
        assert_eq!(verdict(Better::Larger, 0.96, 0.99), Verdict::Missed);
        assert_eq!(verdict(Better::Larger, 0.95, 0.99), Verdict::Must);
        assert_eq!(verdict(Better::Larger, 0.9, 0.95), Verdict::Aim);
        assert_eq!(verdict(Better::Smaller, 0.94, 0.9), Verdict::Missed);
        assert_eq!(verdict(Better::Smaller, 1.1, 0.95), Verdict::Aim);
    }

    #[test]
    fn a_figure_without_an_aim_can_only_meet_its_must() {
        let figure = |value, must| {
            let measured = Quantity { value, unit: "fds".to_owned() };
            Judged::figure(measured, "", Better::Smaller, must, None).verdict()
        };
        assert_eq!((figure(4.0, 4.0), figure(5.0, 4.0)), (Verdict::Must, Verdict::Missed));
    }

    #[test]
    fn repetitions_are_asked_for_where_a_command_has_them() {
        let words = |plain: &Plain, asked| plain.words(asked).join(" ");
        assert_eq!(words(&Plain::repeated("rate", 60), None), "rate --repetitions 60");
        assert_eq!(words(&Plain::repeated("rate", 60), Some(3)), "rate --repetitions 3");
        assert_eq!(words(&Plain::once("idle --seconds 5"), Some(3)), "idle --seconds 5");
    }

    #[test]
    fn figures_are_found_by_name_and_key() {
        let figures = Figures(vec![
            json!({"figure": "call", "size": 4096}),
            json!({"figure": "call", "size": 8}),
        ]);
        assert_eq!(figures.of("call").expect("it is there")["size"], 4096);
        assert_eq!(figures.with("call", "size", &json!(8)).expect("it is there")["size"], 8);
        assert!(figures.of("memcpy").is_none());
    }
}
