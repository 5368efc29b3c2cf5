//! What the tests with real launchers share: running a command to its end, and reading what ranks said.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;

/// The program that every launcher starts.
pub(crate) const PROBE: &str = env!("CARGO_BIN_EXE_job-probe");

/// What came of a command.
pub(crate) struct Outcome {
    /// `None`: ended by a signal.
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs a command to its end; variables of launchers around these tests are kept away.
pub(crate) fn run(program: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Outcome {
    // The watchdog comes first, unless the test has ended; the second signal is for a launcher that waits for its ranks.
    let mut command = Command::new("timeout");
    command.args(["-k", "2", "150", program]).args(arguments).stdin(Stdio::null());
    for (name, _) in std::env::vars() {
        if ["PMI", "HG_JOB_", "OMPI_", "SLURM_"].iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    let command =
        command.envs(variables.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = watchdog::ended(&mut command.spawn().expect("coreutils are installed"));
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Outcome { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

impl Outcome {
    /// What each rank printed, by rank, after all ended well.
    pub(crate) fn ranks(&self) -> Vec<Value> {
        assert_eq!(self.code, Some(0), "{}{}", self.out, self.err);
        let lines = self.out.lines().filter(|line| line.starts_with('{'));
        let mut ranks: Vec<Value> =
            lines.map(|line| serde_json::from_str(line).expect(line)).collect();
        ranks.sort_by_key(|rank| rank["rank"].as_u64());
        ranks
    }

    /// How often a sentence was said on standard error.
    pub(crate) fn count(&self, sentence: &str) -> usize {
        self.err.matches(sentence).count()
    }

    /// The numbers of lines `ended N`, ascending: what [`wrapped`] ranks exited with.
    pub(crate) fn ends(&self) -> Vec<u32> {
        let words = self.out.lines().filter_map(|line| line.trim().strip_prefix("ended "));
        let mut ends: Vec<u32> = words.map(|word| word.parse().expect(word)).collect();
        ends.sort_unstable();
        ends
    }

    /// All that was said, for the message of an assertion.
    pub(crate) fn all(&self) -> String {
        format!("code {:?}\n{}{}", self.code, self.out, self.err)
    }
}

/// Every rank saw the same job of `size` ranks on one node, and every value of every other.
pub(crate) fn assert_one_node(ranks: &[Value], size: usize, via: &str) {
    assert_eq!(ranks.len(), size);
    let all: Vec<usize> = (0..size).collect();
    for (rank, seen) in ranks.iter().enumerate() {
        let expected = serde_json::json!({
            "rank": rank, "size": size, "node": 0, "nodes": 1, "local_rank": rank, "local_size": size,
            "map": format!("1x{size}"), "mates": all, "via": via, "gathered": true,
        });
        let mut seen = seen.clone();
        // Of launchers, too.
        seen.as_object_mut().expect("an object").remove("sockets");
        assert_eq!(seen, expected);
    }
}

/// Four ranks on two nodes of two.
pub(crate) fn assert_two_by_two(ranks: &[Value]) {
    let places: Vec<_> =
        ranks.iter().map(|rank| (rank["node"].as_u64(), rank["local_rank"].as_u64())).collect();
    assert_eq!(
        places,
        [(Some(0), Some(0)), (Some(0), Some(1)), (Some(1), Some(0)), (Some(1), Some(1))]
    );
    assert!(ranks.iter().all(|rank| rank["gathered"] == true && rank["nodes"] == 2));
}

/// Runs all at once, since each spends its time waiting for a bound to pass.
pub(crate) fn all_at_once<T: Sync>(cases: &[T], run: impl Fn(&T) + Sync) {
    std::thread::scope(|scope| {
        for case in cases {
            scope.spawn(|| run(case));
        }
    });
}

/// A rank that died is named by both others, who exit with 1.
pub(crate) fn assert_named(outcome: &Outcome, sentence: &str) {
    assert_eq!(outcome.count(sentence), 2, "{sentence}: {}", outcome.all());
    assert_eq!(outcome.ends(), [1, 1, 137], "{sentence}: {}", outcome.all());
}

/// A command for a launcher: the probe inside a shell that prints its exit status and ends well itself, so
/// that the launcher's own cleaning-up stays out of it. MPICH tells others of a death by `SIGUSR1`.
pub(crate) fn wrapped<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    let script = "trap '' USR1; \"$0\" \"$@\"; echo ended $?";
    [&["sh", "-c", script, PROBE], arguments].concat()
}

/// Is there such a program? If not, the test says that it is skipped.
pub(crate) fn has(program: &str, test: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    folders.extend(["/usr/sbin".into(), "/sbin".into()]);
    let found = folders.iter().any(|folder| folder.join(program).is_file());
    if !found {
        println!("SKIPPED: {test}: {program} is not installed");
    }
    found
}

/// An empty folder of this test; taken away at the end.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("hg-job-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary folder can be made");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn text(&self) -> &str {
        self.0.to_str().expect("made of ASCII here")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
