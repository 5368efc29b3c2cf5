//! callgrind: how many instructions a run takes, and where.
//!
//! Of its file this reads: `totals:`, the names (`fn=(id) name`, the name only the first time; files
//! likewise), and lines of cost: `LINE COST`, the line relative to the last one where signed. The line
//! after `calls=` is the cost of what was called, which is counted where it happens.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::{Scratch, run_under};
use crate::error::{Context, Error};

/// A run of this program under callgrind, and the file with its counts.
#[derive(Debug)]
pub(crate) struct Callgrind {
    out: Scratch,
}

/// Where instructions are spent, most first.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Profile {
    /// By function, with everything that was inlined into it.
    pub(crate) functions: Vec<(String, f64)>,
    /// By line of source.
    pub(crate) lines: Vec<(String, f64)>,
}

impl Callgrind {
    /// Runs a build of this program; with `inside`, only what happens in functions of that pattern counts.
    pub(crate) fn run(
        program: &Path,
        arguments: &[&str],
        inside: Option<&str>,
    ) -> Result<Callgrind, Error> {
        let out = Scratch::new("callgrind");
        let mut command = Command::new("valgrind");
        command.args(["--tool=callgrind", "--quiet"]);
        command.arg(format!("--callgrind-out-file={}", out.path().display()));
        if let Some(pattern) = inside {
            command.arg("--collect-atstart=no").arg(format!("--toggle-collect={pattern}"));
        }
        run_under("valgrind", command, program, arguments)?;
        Ok(Callgrind { out })
    }

    /// Instructions of the whole run.
    pub(crate) fn total(&self) -> Result<f64, Error> {
        let text = self.text()?;
        let total =
            text.lines().find_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok());
        let said = || "its file has no line `totals`".to_owned();
        total.ok_or_else(|| Error::NoCount { tool: "valgrind", said: said() })
    }

    /// Where they are spent.
    pub(crate) fn profile(&self) -> Result<Profile, Error> {
        Ok(Reader::default().read(&self.text()?))
    }

    fn text(&self) -> Result<String, Error> {
        fs::read_to_string(self.out.path()).context("read callgrind's file")
    }
}

/// What has been read so far.
#[derive(Default)]
struct Reader<'a> {
    functions: HashMap<&'a str, &'a str>,
    files: HashMap<&'a str, &'a str>,
    function: &'a str,
    file: &'a str,
    line: i64,
    by_function: HashMap<&'a str, f64>,
    by_line: HashMap<(&'a str, i64), f64>,
}

impl<'a> Reader<'a> {
    fn read(mut self, text: &'a str) -> Profile {
        let mut of_a_call = false;
        for line in text.lines() {
            match line.split_once('=') {
                Some(("fn", name)) => self.function = named(&mut self.functions, name),
                Some(("cfn", name)) => drop(named(&mut self.functions, name)),
                Some(("fl" | "fi" | "fe", name)) => self.file = named(&mut self.files, name),
                Some(("cfi" | "cfl", name)) => drop(named(&mut self.files, name)),
                Some(("calls", _)) => of_a_call = true,
                Some(_) => {}
                None => self.cost(line, std::mem::take(&mut of_a_call)),
            }
        }
        let lines = self.by_line.into_iter();
        Profile {
            functions: sorted(self.by_function.into_iter().map(|(f, c)| (f.to_owned(), c))),
            lines: sorted(lines.map(|((file, line), c)| (format!("{file}:{line}"), c))),
        }
    }

    fn cost(&mut self, line: &str, of_a_call: bool) {
        let Some((position, cost)) = line.split_once(' ') else { return };
        let Ok(cost) = cost.trim().parse::<f64>() else { return };
        let relative = position.starts_with(['+', '-']);
        match position.parse::<i64>() {
            Ok(steps) if relative => self.line += steps,
            Ok(line) => self.line = line,
            Err(_) if position == "*" => {}
            Err(_) => return,
        }
        if !of_a_call {
            *self.by_function.entry(self.function).or_default() += cost;
            *self.by_line.entry((self.file, self.line)).or_default() += cost;
        }
    }
}

/// `(id) name` introduces a name, `(id)` repeats it.
fn named<'a>(names: &mut HashMap<&'a str, &'a str>, text: &'a str) -> &'a str {
    let (id, name) = text.split_once(' ').unwrap_or((text, ""));
    if !name.is_empty() {
        names.insert(id, name);
    }
    names.get(id).copied().unwrap_or(id)
}

fn sorted(costs: impl Iterator<Item = (String, f64)>) -> Vec<(String, f64)> {
    let mut costs: Vec<_> = costs.collect();
    costs.sort_by(|(a, x), (b, y)| y.total_cmp(x).then_with(|| a.cmp(b)));
    costs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_go_to_the_function_and_the_line_where_they_happen() {
        let text = "events: Ir\nfl=(1) a.rs\nfn=(1) outer\n10 3\n+2 4\nfi=(2) b.rs\n5 1\nfe=(1)\n\
                    cfi=(2)\ncfn=(2) inner\ncalls=1 7\n12 100\n* 2\n\nfl=(2)\nfn=(2)\n7 90\n-1 10\n\
                    totals: 110\n";
        let profile = Reader::default().read(text);
        let owned = |list: &[(&str, f64)]| -> Vec<(String, f64)> {
            list.iter().map(|(name, cost)| ((*name).to_owned(), *cost)).collect()
        };
        assert_eq!(profile.functions, owned(&[("inner", 100.0), ("outer", 10.0)]));
        let lines = [("b.rs:7", 90.0), ("b.rs:6", 10.0), ("a.rs:12", 6.0), ("a.rs:10", 3.0)];
        assert_eq!(profile.lines[..4], owned(&lines));
    }
}
