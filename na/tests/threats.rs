//! `na/THREATS.md` names a proof in every line, and each one exists.

use std::{fs, path::Path};

/// Words in backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn every_proof_of_a_threat_is_a_test_that_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let text = fs::read_to_string(root.join("na/THREATS.md")).unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let (mut proofs, mut lines_read) = (0, 0);
    for line in lines.filter(|line| !line.starts_with("who |")) {
        let (_, cell) = line.rsplit_once(" | ").unwrap();
        lines_read += 1;
        let says_so = ["nobody", "not proven", "as there"].iter().any(|it| cell.contains(it));
        assert!(says_so || quoted(cell).next().is_some(), "no proof: {line}");
        let (mut file, mut lacks_test) = (String::new(), None);
        for name in quoted(cell) {
            if name.ends_with(".rs") {
                assert_eq!(lacks_test, None, "a file without a test: {line}");
                // A fuzz target is one file.
                lacks_test = (!name.starts_with("fuzz/fuzz_targets/")).then_some(name);
                file = fs::read_to_string(root.join(name)).unwrap_or_else(|why| {
                    panic!("{name}: {why}");
                });
            } else if name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_') {
                assert!(file.contains(&format!("fn {name}(")), "no test {name}: {line}");
                lacks_test = None;
                proofs += 1;
            }
        }
        assert_eq!(lacks_test, None, "a file without a test: {line}");
    }
    assert!(lines_read >= 50 && proofs >= 50, "{lines_read} lines, {proofs} tests");
}
