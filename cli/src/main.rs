//! `hg`: what this machine offers to Hydrargyrum.
//!
//! | module  | what it does                                            |
//! |---------|---------------------------------------------------------|
//! | `cli`   | the command line, and its words for a wrong one         |
//! | `info`  | `hg info`: which offers were asked for, and how it ends |
//! | `table` | offers for people, within 80 columns                    |
//! | `json`  | offers for programs, one object a line                  |
//!
//! Exit status: 0 when something of what was asked for can be opened, 1 when nothing can, 2 when the
//! command line is wrong.

#![forbid(unsafe_code)]

mod cli;
mod info;
mod json;
mod table;

use std::{io::Write, process::ExitCode};

fn main() -> ExitCode {
    match cli::run() {
        Ok(code) => code,
        Err(wrong) => {
            // A closed standard error leaves nobody to tell.
            let _ = writeln!(std::io::stderr(), "hg: {}", wrong.sentence);
            ExitCode::from(wrong.status)
        }
    }
}
