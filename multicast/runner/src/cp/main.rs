//! `multicast-cp`: files to many hosts at once, in about the time of one copy.
//!
//! ```console
//! $ multicast-cp model.bin node1:/scratch node2:/scratch node3:/scratch
//! $ multicast-cp --receive /scratch --key-file key          # by hand, on each host
//! tcp://10.0.0.2:40123
//! $ multicast-cp --key-file key model.bin tcp://10.0.0.2:40123 tcp://10.0.0.3:41877/models
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | `arguments` | what it may be told |
//! | `send` | the sender's side |
//! | `receive` | the receiver's side |
//! | `protocol` | what they ask one another, beside what travels in the group |
//! | `hosts` | those that are copied to |
//! | `started` | a receiver that is started on another host |
//! | `engine`, `key` | the transport, and who may use it |
//! | `report` | what is printed at the end |

#![forbid(unsafe_code)]

mod arguments;
mod engine;
mod hosts;
mod key;
mod protocol;
mod receive;
mod report;
mod send;
mod started;

use std::{ffi::OsString, os::unix::ffi::OsStrExt as _, path::Path, process::ExitCode};

use hg_job_runner::say::{say, unless_closed};
use hg_multicast_copy::offer::one_line;

use crate::arguments::Arguments;

/// Of this program.
const NAME: &str = "multicast-cp";

fn main() -> ExitCode {
    let wrong = |sentence: String| {
        say(&format!("{NAME}: {sentence}{}", meant(&sentence)));
        ExitCode::from(hg_cli_style::WRONG)
    };
    let arguments: Arguments = match hg_cli_style::parse_or(wrong, || true) {
        Ok(arguments) => arguments,
        Err(ended) => return ended,
    };
    match run(&arguments) {
        Ok(code) => code,
        Err(why) => {
            say(&format!("{NAME}: {why}"));
            ExitCode::FAILURE
        }
    }
}

/// Where a file was taken for an option: how it is written.
fn meant(sentence: &str) -> String {
    let mut words = std::env::args_os().skip(1);
    let is_file = |word: &OsString| word.as_bytes().starts_with(b"-") && Path::new(word).exists();
    match words.find(is_file) {
        Some(file) if sentence.starts_with("unexpected argument") => {
            format!("; the file is written ./{}", one_line(&file.to_string_lossy()))
        }
        _ => String::new(),
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode, String> {
    if let Some(folder) = &arguments.receive {
        return receive::run(arguments, folder).map(|()| ExitCode::SUCCESS);
    }
    if let Err(why) = arguments.files_and_targets().and_then(|_| arguments.settings()) {
        say(&format!("{NAME}: {why}; `{NAME} --help` says what there is"));
        return Ok(ExitCode::from(hg_cli_style::WRONG));
    }
    let report = send::run(arguments)?;
    if arguments.json || !arguments.quiet {
        let printed = unless_closed(report.print(arguments.json));
        printed.map_err(|error| format!("the report cannot be printed: {error}"))?;
    }
    Ok(if report.is_well() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
