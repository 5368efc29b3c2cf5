//! The declarations agree with PMIx's C headers, where a machine has them.

#![expect(clippy::print_stdout, reason = "says what is skipped")]

use std::{fmt::Write as _, path::Path, process::Command};

/// Debian keeps them apart from the other headers.
const FOLDERS: [&str; 3] = [
    "/usr/lib/x86_64-linux-gnu/pmix2/include",
    "/usr/lib/aarch64-linux-gnu/pmix2/include",
    "/usr/include",
];

#[test]
fn declarations_agree_with_the_headers() {
    let Some(folder) = FOLDERS.iter().find(|folder| Path::new(folder).join("pmix.h").is_file())
    else {
        println!("SKIPPED: declarations_agree_with_the_headers: libpmix-dev is not installed");
        return;
    };
    let mut program = String::from(
        "#include <pmix.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n",
    );
    for (expression, _) in hg_job::LAYOUT {
        writeln!(program, "printf(\"%zu\\n\", (size_t) ({expression}));").unwrap();
    }
    program.push_str("return 0; }\n");
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, binary) = (directory.join("pmix.c"), directory.join("pmix"));
    std::fs::write(&source, program).unwrap();
    let built = Command::new("cc")
        .arg("-I")
        .arg(folder)
        .arg("-o")
        .arg(&binary)
        .arg(&source)
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let said = Command::new(&binary).output().unwrap().stdout;
    let said: Vec<usize> =
        String::from_utf8(said).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(said.len(), hg_job::LAYOUT.len());
    for ((expression, declared), said) in hg_job::LAYOUT.iter().zip(said) {
        assert_eq!(*declared, said, "{expression}");
    }
}
