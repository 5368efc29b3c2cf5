//! The example as it is started: alone, when it starts its own processes.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

/// Built with the tests, unless only this one was asked for.
fn example() -> PathBuf {
    let own = std::env::current_exe().expect("a program has a path");
    let folder = own.parent().and_then(|deps| deps.parent()).expect("a target folder");
    let example = folder.join("examples").join("bfs");
    if !example.is_file() {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "-q", "-p", "hydrargyrum-invoke", "--example", "bfs"]);
        build.arg("--target-dir").arg(folder.parent().expect("a target folder"));
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo starts").success());
    }
    example
}

#[test]
fn the_search_finds_what_one_thread_finds() {
    let mut search = Command::new(example());
    search.args(["5000", "4"]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = watchdog::ended(&mut search.spawn().expect("it was built"));
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    let found = said.lines().any(|line| line.contains(" of 5000 vertices by 4 threads: "));
    assert!(found && said.ends_with("one thread finds the same\n"), "{said}{errors}");
}
