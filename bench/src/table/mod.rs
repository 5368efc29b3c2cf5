//! `hg-perf table`: what the product promises about its speed and memory, line by line, judged.
//!
//! Every line names the plain `hg-perf` command that measures it; this one only runs them one after the
//! other, reads their `--json` lines and holds each figure against its *must* and its *aim*. The figures are
//! medians over repetitions, and each command takes its figures in turns with the limits beside them.
//!
//! | module    | what it is                                                                         |
//! |-----------|------------------------------------------------------------------------------------|
//! | `claim`   | what a line claims, and the figures that it is judged by                           |
//! | `calls`   | the lines about calls, peers and what they cost                                    |
//! | `bulk`    | the lines about transfers                                                          |
//! | `network` | the lines about TCP, and about addresses that are reached by either way            |
//! | `invoke`  | the lines about calls between workers                                              |
//! | `messages` | the lines about messages from every rank to every other                           |
//! | `ways`    | the lines about calls as programs make them                                        |
//! | `print`   | the table for people, or one JSON object a line                                    |

mod bulk;
mod calls;
mod claim;
mod invoke;
mod messages;
mod network;
mod print;
mod ways;

use std::io::{self, Write};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::error::{Context, Error};
use crate::limits::Placement;
use crate::pair::Cores;
use crate::progress::Progress;
use claim::{Claim, Figures, Run};
use print::{Outcome, Printer};

/// `hg-perf table`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Only lines whose name contains this; may be given several times.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Repetitions of each figure, instead of as many as each line has by default.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: Option<u32>,
    /// Prints the names of all lines and the commands that measure them, and measures nothing.
    #[arg(long)]
    list: bool,
}

/// Measures, judges and prints.
pub(crate) fn run(arguments: &Arguments, json: bool) -> Result<(), Error> {
    let runs = arguments.chosen()?;
    if arguments.is_list() {
        return list(&runs, arguments.repetitions);
    }
    let mut printer = Printer::new(io::stdout().lock(), json);
    let mut progress = Progress::new();
    progress.now("where are the two cores to each other?");
    let placed = placement()?;
    progress.clear();
    printer.start(&placed)?;
    for (number, run) in (1..).zip(&runs) {
        let text = run.text(arguments.repetitions);
        progress.now(&format!("command {number} of {}: {text}", runs.len()));
        let measured =
            run.commands.iter().map(|command| figures(&command.words(arguments.repetitions)));
        let measured: Result<Vec<Vec<Value>>, String> = measured.collect();
        let figures = measured.map(|lines| Figures(lines.concat()));
        progress.clear();
        for claim in &run.claims {
            printer.line(claim, &text, &outcome(claim, &figures))?;
        }
    }
    printer.end(&placement()?)
}

impl Arguments {
    /// Whether nothing is measured.
    pub(crate) fn is_list(&self) -> bool {
        self.list
    }

    /// Every run that measures a chosen line, with the chosen lines only.
    fn chosen(&self) -> Result<Vec<Run>, Error> {
        let chosen = |claim: &Claim| {
            self.only.is_empty() || self.only.iter().any(|part| claim.name.contains(part))
        };
        let mut runs = all();
        for run in &mut runs {
            run.claims.retain(chosen);
        }
        runs.retain(|run| !run.claims.is_empty());
        if runs.is_empty() {
            let why = "no line has such a name: `hg-perf table --list` has them all";
            return Err(Error::Impossible(why.to_owned()));
        }
        Ok(runs)
    }
}

/// All lines, in the order of the table.
fn all() -> Vec<Run> {
    let parts = [
        calls::runs(),
        bulk::runs(),
        network::runs(),
        messages::runs(),
        invoke::runs(),
        ways::runs(),
    ];
    parts.into_iter().flatten().collect()
}

fn list(runs: &[Run], repetitions: Option<u32>) -> Result<(), Error> {
    let out = &mut io::stdout().lock();
    for run in runs {
        for claim in &run.claims {
            let text = run.text(repetitions);
            writeln!(out, "{:width$}  {text}", claim.name, width = print::NAME).context("write")?;
        }
    }
    Ok(())
}

/// What a line has come to.
fn outcome(claim: &Claim, figures: &Result<Figures, String>) -> Outcome {
    match figures {
        Ok(figures) => match (claim.judge)(figures) {
            Some(judged) => Outcome::Judged(judged),
            None => Outcome::NotMeasured("the command printed no such figure".to_owned()),
        },
        Err(why) => Outcome::NotMeasured(why.clone()),
    }
}

/// The lines of one command, or what it complained of.
fn figures(words: &[String]) -> Result<Vec<Value>, String> {
    let output = std::env::current_exe().and_then(|program| {
        let mut command = Command::new(program);
        command.args(words).arg("--json").stdin(Stdio::null()).output()
    });
    let output = output.map_err(|error| error.to_string())?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(said.lines().last().unwrap_or("it ended without a word").to_owned());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().map(serde_json::from_str).collect::<Result<_, _>>();
    lines.map_err(|error| error.to_string())
}

/// Where the two cores are to each other now, as the quick limits tell.
fn placement() -> Result<String, Error> {
    let words = ["limits", "--quick", "--repetitions", "3"].map(str::to_owned);
    let lines = Figures(figures(&words).map_err(Error::Failed)?);
    let round_trip = lines.of("cache_line_round_trip").and_then(|line| line["median"].as_f64());
    let round_trip = round_trip.ok_or_else(|| Error::Failed("no limit was printed".to_owned()))?;
    let placement = Placement::of(Cores::choose()?, round_trip).as_str();
    Ok(format!("{placement} (R = {round_trip:.3} us)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_line_has_a_name_of_its_own_and_a_command_that_the_command_line_knows() {
        let mut names = BTreeSet::new();
        for run in all() {
            assert!(!run.commands.is_empty() && !run.claims.is_empty());
            for command in &run.commands {
                let words = command.words(Some(1));
                crate::cli::check(&words).unwrap_or_else(|error| panic!("{words:?}: {error}"));
            }
            for claim in run.claims {
                assert!(names.insert(claim.name.clone()), "{}", claim.name);
            }
        }
    }

    #[test]
    fn lines_are_chosen_by_parts_of_their_names() {
        let only = |names: &[&str]| Arguments {
            only: names.iter().map(|&name| name.to_owned()).collect(),
            repetitions: None,
            list: false,
        };
        let names = |arguments: &Arguments| -> Vec<String> {
            let runs = arguments.chosen().unwrap_or_default();
            runs.into_iter().flat_map(|run| run.claims).map(|claim| claim.name).collect()
        };
        assert_eq!(names(&only(&["call/spin"])), ["call/spin"]);
        assert_eq!(names(&only(&["call/spin", "call/block"])), ["call/spin", "call/block"]);
        assert!(names(&only(&["no such line"])).is_empty());
        assert!(names(&only(&[])).len() > 40);
    }
}
