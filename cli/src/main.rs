//! `hydrargyrum`: what this machine offers to Hydrargyrum, and whether an engine answers.
//!
//! | module  | what it does                                            |
//! |---------|---------------------------------------------------------|
//! | `cli`   | the command line                                        |
//! | `info`  | `hydrargyrum info`: which offers were asked for, and how it ends |
//! | `ping`  | `hydrargyrum ping`: whether an engine answers                    |
//! | `table` | offers for people, within 80 columns                    |
//! | `json`  | offers for programs, one object a line                  |
//!
//! Exit status: 0 when what was asked for is there, 1 when it is not, 2 when the command line is wrong.

#![forbid(unsafe_code)]

mod cli;
mod info;
mod json;
mod ping;
mod table;

use std::{io::Write, process::ExitCode};

fn main() -> ExitCode {
    match cli::run() {
        Ok(code) => code,
        Err(wrong) => {
            // A closed standard error leaves nobody to tell.
            let _ = writeln!(std::io::stderr(), "hydrargyrum: {}", wrong.sentence);
            ExitCode::from(wrong.status)
        }
    }
}
