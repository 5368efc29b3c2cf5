//! The implementations of MPI that figures can stand beside.

use std::process::Command;

/// Which of the two MPIs can be compared with; the others are named.
#[expect(clippy::print_stderr, reason = "says what is skipped")]
pub(crate) fn installed(test: &str) -> Vec<&'static str> {
    let kinds = [("openmpi", "libopenmpi-dev"), ("mpich", "libmpich-dev")];
    let has_headers = |name: &str| {
        let source = "#include <mpi.h>\nint main(void) { return 0; }\n";
        let file = std::env::temp_dir().join(format!("hg-perf-{name}-{}.c", std::process::id()));
        std::fs::write(&file, source).expect("a temporary file can be written");
        let mut compiler = Command::new(format!("mpicc.{name}"));
        let built = compiler.args(["-fsyntax-only"]).arg(&file).output();
        std::fs::remove_file(&file).expect("what was written can be removed");
        built.is_ok_and(|output| output.status.success())
    };
    let (there, missing): (Vec<_>, Vec<_>) =
        kinds.into_iter().partition(|(name, _)| has_headers(name));
    for (_, package) in missing {
        eprintln!("SKIPPED: {test}: {package} is not installed");
    }
    there.into_iter().map(|(name, _)| name).collect()
}
