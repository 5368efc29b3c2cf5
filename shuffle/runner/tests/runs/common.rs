//! What the tests share: running the program to its end, and reading what it said. Tests of other runners take it in by `#[path]`.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use serde_json::Value;

/// What came of a command.
pub(crate) struct Outcome {
    /// `None`: ended by a signal.
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// A command that outlives these tests not for long, and knows nothing of a launcher around them.
pub(crate) fn command(program: &str, arguments: &[&str]) -> Command {
    // The watchdog comes first, unless the test has ended; the second signal is for a launcher that waits for its ranks.
    let mut command = Command::new("timeout");
    command.args(["-k", "2", "150", program]).args(arguments).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    for (name, _) in std::env::vars() {
        if ["PMI", "HG_JOB_", "OMPI_", "SLURM_"].iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command
}

/// Runs a command to its end.
pub(crate) fn run(program: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Outcome {
    ended(command(program, arguments).envs(variables.iter().copied()))
}

/// The same with any command.
pub(crate) fn ended(command: &mut Command) -> Outcome {
    let mut process = command.spawn().expect("coreutils are installed");
    let output = watchdog::ended(&mut process);
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Outcome { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

impl Outcome {
    /// The lines of JSON.
    pub(crate) fn lines(&self) -> Vec<Value> {
        let lines = self.out.lines().filter(|line| line.starts_with('{'));
        lines.map(|line| serde_json::from_str(line).expect(line)).collect()
    }

    /// The last line, after a run of so many ranks in which each message arrived once and whole.
    pub(crate) fn total(&self, ranks: u64) -> Value {
        assert_eq!(self.code, Some(0), "{}", self.all());
        let lines = self.lines();
        assert_eq!(lines.len() as u64, ranks + 1, "{}", self.all());
        let total = lines.last().expect("more than none").clone();
        let wrong = ["lost", "repeated", "corrupted"].map(|name| total[name].as_u64());
        assert_eq!(wrong, [Some(0); 3], "{total}");
        assert_eq!((total["rank"].is_null(), &total["ranks"]), (true, &ranks.into()), "{total}");
        assert_eq!(total["sent"], total["received"], "{total}");
        let rate = |name: &str| total[name].as_f64().expect(name);
        assert!(rate("messages_per_s") > 0.0 && rate("mb_per_s") > 0.0, "{total}");
        total
    }

    /// All that was said, for the message of an assertion.
    pub(crate) fn all(&self) -> String {
        format!("code {:?}\n{}{}", self.code, self.out, self.err)
    }
}

/// Is there such a program? If not, the test says that it is skipped.
pub(crate) fn has(program: &str, test: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    if !found {
        println!("SKIPPED: {test}: {program} is not installed");
    }
    found
}

/// A file or folder of this test; taken away at the end.
pub(crate) struct File(pub(crate) PathBuf);

impl File {
    pub(crate) fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("hg-runner-{}-{name}", std::process::id())))
    }

    pub(crate) fn text(&self) -> &str {
        self.0.to_str().expect("made of ASCII here")
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0).or_else(|_| std::fs::remove_dir_all(&self.0));
    }
}
