//! Ranks that are started one by one, each with the daemon of its node. Tests of other runners take it in by `#[path]`.

use std::{
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

use crate::{
    common::{File, command},
    nodes::Daemons,
};

/// Starts a rank for each word that names a daemon, and says how it ended.
const SCRIPT: &str = r#"trap '' USR1
rank=0
for HG_VISOR in $DAEMONS; do
  export HG_VISOR HG_JOB_RANK=$rank
  { "$0" "$@"; echo "ended $?"; } &
  rank=$((rank + 1))
done
wait"#;

/// Ranks that meet in a folder, which is taken away at the end.
pub(crate) struct Apart(File);

impl Apart {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        // Relaxed: all that counts is that no two are the same.
        let folder = File::new(&format!("ranks-{}", NUMBER.fetch_add(1, Ordering::Relaxed)));
        std::fs::create_dir(&folder.0).expect("it is of this test alone");
        Self(folder)
    }

    /// What starts so many ranks as there are nodes named.
    pub(crate) fn command(
        &self,
        program: &str,
        (daemons, nodes): (&Daemons, &[u32]),
        arguments: &str,
    ) -> Command {
        let given: Vec<&str> = arguments.split_whitespace().collect();
        let mut command = command("sh", &[&["-c", SCRIPT, program][..], &given].concat());
        let names: Vec<&str> = nodes.iter().map(|node| daemons.name(*node)).collect();
        command.env("DAEMONS", names.join(" ")).env("HG_JOB_SIZE", nodes.len().to_string());
        command.env("HG_JOB_RENDEZVOUS", format!("dir:{}", self.0.text()));
        command
    }
}
