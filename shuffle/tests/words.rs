//! The example `words` over several files, at four ranks: as many as a look at them alone finds.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Built as this test was, and beside it.
fn example() -> PathBuf {
    let itself = std::env::current_exe().unwrap();
    let profile = itself.ancestors().nth(2).unwrap();
    let example = profile.join("examples/words");
    if !example.is_file() {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "-q", "-p", "hydrargyrum-shuffle", "--example", "words"]);
        build.arg("--target-dir").arg(profile.parent().unwrap());
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        assert!(build.status().unwrap().success());
    }
    example
}

#[test]
fn words_of_several_files_are_counted_once_each_whichever_rank_reads_them() {
    let _watchdog = watchdog::Watchdog::start();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    // More than there are ranks, and not as many for each.
    let names = ["lib.rs", "hop.rs", "mail.rs", "queue.rs", "inbox.rs", "room.rs", "turns.rs"];
    let files = names.map(|name| source.join(name));
    let mut counts = HashMap::<String, u64>::new();
    for file in &files {
        let text = fs::read_to_string(file).unwrap();
        let words = text.split(|letter: char| !letter.is_alphanumeric());
        for word in words.filter(|word| !word.is_empty()) {
            *counts.entry(word.to_lowercase()).or_default() += 1;
        }
    }
    let output = Command::new(example()).args(&files).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}");
    let mut lines = said.lines();
    let (all, different) = (counts.values().sum::<u64>(), counts.len());
    let total = format!("{all} words, {different} different ones, at 4 ranks");
    assert_eq!(lines.next(), Some(&total[..]), "{said}");
    let shown: Vec<_> = lines.map(|line| line.trim().split_once(' ').unwrap()).collect();
    assert_eq!(shown.len(), 10, "{said}");
    for (count, word) in shown {
        assert_eq!(Some(count.parse().unwrap()), counts.get(word).copied(), "{word}");
    }
}
