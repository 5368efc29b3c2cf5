//! How the programs read their command lines, all alike: `PROGRAM: what is wrong; what to do` on one line of standard
//! error and status 2 for a wrong one, and help on standard output.
//!
//! # Threads
//! None.
//!
//! # Cleanup
//! Nothing is left behind.
//!
//! # Features
//! None.

#![forbid(unsafe_code)]

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::{
    Parser,
    error::{ContextKind, ContextValue, ErrorKind},
};

/// Status of a process whose command line is wrong.
pub const WRONG: u8 = 2;

/// The command line of this process.
///
/// # Errors
/// How the program is to end: help was printed, or a sentence about what is wrong.
pub fn parse<P: Parser>() -> Result<P, ExitCode> {
    let wrong = |sentence: String| {
        say::<P>(&sentence);
        ExitCode::from(WRONG)
    };
    parse_or(wrong, || true)
}

/// The same, for a program that says by itself what is wrong: it is given the sentence. Help is printed where `prints` says
/// so: of several processes with one command line, one does.
///
/// # Errors
/// How the program is to end.
pub fn parse_or<P: Parser>(
    wrong: impl FnOnce(String) -> ExitCode,
    prints: impl FnOnce() -> bool,
) -> Result<P, ExitCode> {
    P::try_parse().map_err(|told| {
        if !matches!(told.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
            return wrong(sentence::<P>(&told));
        }
        if !prints() {
            return ExitCode::SUCCESS;
        }
        match print(&format!("{}\n", told.to_string().trim_end())) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                say::<P>(&format!("standard output cannot be written: {error}"));
                ExitCode::FAILURE
            }
        }
    })
}

fn say<P: Parser>(sentence: &str) {
    let program = P::command().get_name().to_owned();
    // A closed standard error leaves nobody to tell.
    let _ = io::stderr().write_all(format!("{program}: {sentence}\n").as_bytes());
}

/// Writes to standard output; a reader who closed it has read enough.
///
/// # Errors
/// Why it cannot be written.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// What clap has to say before its first empty line, perhaps a list, and what to do.
fn sentence<P: Parser>(wrong: &clap::Error) -> String {
    let command = P::command();
    let (text, mut what) = (wrong.to_string(), String::new());
    if matches!(
        wrong.kind(),
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        let shown = command.get_subcommands().filter(|it| !it.is_hide_set());
        let names: Vec<&str> = shown.map(clap::Command::get_name).collect();
        what = format!("a command is missing: {}", names.join(", "));
    } else {
        for line in text.lines().map(str::trim).take_while(|line| !line.is_empty()) {
            let gap = if what.is_empty() { "" } else { " " };
            what += gap;
            what += line;
        }
    }
    let what = what.strip_prefix("error: ").unwrap_or(&what);
    format!("{what}{}; `{} --help` says what there is", meant(wrong), command.get_name())
}

/// What was perhaps meant.
fn meant(wrong: &clap::Error) -> String {
    let kinds =
        [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::SuggestedValue];
    match kinds.iter().find_map(|kind| wrong.get(*kind)) {
        Some(ContextValue::String(one)) => format!(": `{one}`?"),
        // The likeliest comes last.
        Some(ContextValue::Strings(all)) => {
            all.last().map_or_else(String::new, |one| format!(": `{one}`?"))
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Parser)]
    #[command(name = "program", subcommand_required = true)]
    struct Arguments {
        #[command(subcommand)]
        command: Commands,
    }

    #[derive(Debug, clap::Subcommand)]
    enum Commands {
        One {
            #[arg(value_parser = ["red", "green"])]
            colour: String,
            number: u32,
        },
        #[command(hide = true)]
        Two,
    }

    fn said(words: &[&str]) -> String {
        let words = [&["program"], words].concat();
        sentence::<Arguments>(&Arguments::try_parse_from(words).unwrap_err())
    }

    #[test]
    fn whatever_is_wrong_is_one_sentence_with_what_to_do() {
        let end = "; `program --help` says what there is";
        let cases = [
            (&[][..], "a command is missing: one"),
            (&["three"], "unrecognized subcommand 'three'"),
            (&["onee"], "unrecognized subcommand 'onee': `one`?"),
            (&["one", "--big"], "unexpected argument '--big' found"),
            (
                &["one", "blue", "1"],
                "invalid value 'blue' for '<COLOUR>' [possible values: red, green]",
            ),
            (&["one"], "the following required arguments were not provided: <COLOUR> <NUMBER>"),
        ];
        for (words, what) in cases {
            assert_eq!(said(words), format!("{what}{end}"), "{words:?}");
        }
    }
}
