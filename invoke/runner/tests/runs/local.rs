//! Processes that the program starts itself.

use crate::{
    OFI, RUNNER,
    common::{File, Outcome, command, run},
    has_ofi, total,
};

fn local(arguments: &str) -> Outcome {
    let given: Vec<&str> = arguments.split_whitespace().collect();
    run(RUNNER, &[&["--json", "--local"][..], &given].concat(), &[])
}

/// The transports that this machine has.
fn urls(test: &str) -> Vec<&'static str> {
    let mut urls = vec!["sm://", "tcp://127.0.0.1"];
    if has_ofi(test) {
        urls.push(OFI);
    }
    urls
}

#[test]
fn every_call_of_every_pattern_runs_once_and_in_order() {
    for url in urls("every_call_of_every_pattern_runs_once_and_in_order") {
        for pattern in ["pairwise", "all", "random", "hot-spot --target 1"] {
            let two = local(&format!("2 --pattern {pattern} --url {url} --count 20000"));
            assert_eq!(total(&two, 2)["made"], 40_000, "{pattern}");
            let more = format!("4 --threads 2 --pattern {pattern} --url {url} --count 4000");
            assert_eq!(total(&local(&more), 8)["made"], 32_000, "{pattern}");
        }
    }
}

#[test]
fn every_packing_every_size_and_every_choice_for_full_receivers_as_well() {
    let small = "--block 128 --window 2048";
    for url in urls("every_packing_every_size_and_every_choice_for_full_receivers_as_well") {
        for packing in ["trad", "ovfl", "plain"] {
            for full in ["back", "wait", "queue"] {
                let of = format!("--url {url} --packing {packing} --full {full} --every 32");
                let tight = format!("3 {of} {small} --pattern hot-spot --count 1000");
                total(&local(&tight), 3);
                let queued = format!("2 --threads 2 {of} --queue-max 4096 --size 100 --count 1000");
                total(&local(&queued), 4);
            }
        }
        // Arguments of calls fit in a message, of which libfabric has the shortest.
        for size in [16, 17, 4096, if url == OFI { 16_000 } else { 100_000 }] {
            total(&local(&format!("2 --url {url} --size {size} --count 200")), 2);
        }
    }
}

#[test]
fn results_buffers_and_broadcasts_are_verified_as_well() {
    let small = "--block 128 --window 2048 --every 32";
    for url in urls("results_buffers_and_broadcasts_are_verified_as_well") {
        for (kind, size) in [("return", 8), ("return", 200), ("buffer", 200), ("read", 16)] {
            let of = format!("--kind {kind} --size {size} --url {url}");
            for full in ["back", "wait", "queue"] {
                let hot = format!("3 {of} {small} --full {full} --pattern hot-spot --count 400");
                assert_eq!(total(&local(&hot), 3)["made"], 1200, "{hot}");
            }
            let random = format!("2 --threads 2 {of} --pattern random --count 1000");
            assert_eq!(total(&local(&random), 4)["made"], 4000, "{random}");
            let plain = format!("2 {of} --packing plain --pattern pairwise --count 300");
            assert_eq!(total(&local(&plain), 2)["made"], 600, "{plain}");
        }
        let long = format!("3 --kind read --size 1000000 --url {url} --count 30 --warm-up 3");
        assert_eq!(total(&local(&long), 3)["made"], 90, "{long}");
        for size in [8, 500] {
            let of = format!("--kind broadcast --size {size} --url {url}");
            let broadcast = format!("3 --threads 3 {of} --count 300");
            assert_eq!(total(&local(&broadcast), 9)["made"], 9 * 9 * 300, "each runs everywhere");
            let tight =
                format!("2 --threads 2 {of} {small} --full back --queue-max 4096 --count 300");
            assert_eq!(total(&local(&tight), 4)["made"], 4 * 4 * 300);
        }
    }
}

#[test]
fn plain_calls_are_a_message_each_and_packed_ones_are_few_unless_there_is_always_room() {
    let blocks = |packing: &str| {
        let calls =
            "--pattern hot-spot --target 1 --count 5000 --every 5000 --warm-up 0 --full wait";
        let outcome = local(&format!("2 --packing {packing} {calls}"));
        total(&outcome, 2);
        let blocks = outcome.lines()[0]["blocks"].as_u64().unwrap();
        assert_eq!(outcome.lines()[0]["made"], 5000, "{}", outcome.all());
        blocks
    };
    assert!(blocks("plain") >= 5000);
    // 16 bytes each in blocks of 4 KiB, some of which left early.
    assert!((20..2500).contains(&blocks("trad")));
    // A message each for as long as the transport takes them, which is more than a hundred.
    assert!((100..5100).contains(&blocks("ovfl")));
}

#[test]
fn threads_of_one_process_need_no_transport() {
    let outcome = local("1 --threads 3 --count 5000 --warm-up 0");
    assert_eq!(total(&outcome, 3)["blocks"], 0, "{}", outcome.all());
    assert!(total(&outcome, 3)["handed_over"].as_u64() > Some(0), "{}", outcome.all());
}

#[test]
fn a_run_of_some_time_ends_with_a_table_a_picture_and_a_sentence() {
    let file = File::new("calls.svg");
    let given = ["--local", "2", "--duration", "0.2", "--plot", file.text()];
    let outcome = run(RUNNER, &given, &[]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.all());
    assert_eq!(outcome.out.lines().count(), 2 + 3 + 1, "{}", outcome.all());
    let last = outcome.out.lines().last().unwrap();
    assert!(last.contains(" calls verified: each ran once, in the order of its caller"), "{last}");
    let drawn = std::fs::read_to_string(&file.0).unwrap();
    assert!(drawn.starts_with("<svg ") && drawn.matches("<polyline").count() == 2, "{drawn}");
}

#[test]
fn a_warm_up_is_not_counted() {
    let outcome = local("2 --count 60 --warm-up 5000 --pattern pairwise");
    assert_eq!(total(&outcome, 2)["run"], 120, "{}", outcome.all());
}

#[test]
fn bad_arguments_give_one_clear_sentence_and_start_nothing() {
    let cases = [
        ("2 --size 9", "--size: 9 bytes: 8, or at least 16"),
        ("2 --size 200000", "--size: 200000 bytes are over half of a window: --window"),
        ("2 --pattern hot-spot --target 9", "--target: there is no rank 9: the job has 2"),
        ("2 --target 1", "--target: goes with `--pattern hot-spot` only"),
        ("2 --kind broadcast --pattern random", "--kind: broadcast goes to all threads: "),
        ("2 --kind read --size 8", "--size: at least 16 bytes of a buffer"),
        ("2 --duration=-1", "--duration: not between 0 and "),
        ("2 --duration=NaN", "--duration: not between 0 and "),
        ("2 --setting bound", "--setting: `bound` is not NAME=VALUE"),
        ("2 --block 10", "--block: `Limits::block` is 10 bytes: at least 64"),
        ("2 --window 100", "--window: `Limits::window` is 100 bytes: at least 8224"),
        (
            "2 --widest 4000000000",
            "--widest: `Limits::widest` is 4000000000 bytes: at most 1073741824",
        ),
        ("2 --url nothing://", "--url: no transport of this build takes `nothing://`"),
        ("2 --url tcp://127.0.0.1 --setting sleep=well", "sleep"),
        ("2 --plot /nowhere/at/all.svg", "--plot: /nowhere/at/all.svg cannot be written: "),
        ("0", "0 is no number of ranks"),
        ("65000 --threads 255", "--threads: all processes together have at most 8388608"),
        ("60000", "--local: 60000 ranks need "),
    ];
    for (arguments, sentence) in cases {
        let outcome = local(arguments);
        assert_eq!((outcome.code, outcome.out.as_str()), (Some(1), ""), "{}", outcome.all());
        let said = outcome.err.lines().filter(|line| line.contains(sentence)).count();
        assert_eq!(said, 1, "{sentence}: {}", outcome.err);
        assert!(outcome.err.starts_with("invoke-runner: "), "{}", outcome.err);
    }
    for wrong in [
        "2 --pattern odd",
        "2 --packing tight",
        "2 --full stop",
        "2 --kind none",
        "2 --count 1 --duration 1",
        "2 --threads 0",
        "2 --every 0",
    ] {
        let outcome = local(wrong);
        assert_eq!((outcome.code, outcome.out.as_str()), (Some(2), ""), "{}", outcome.all());
        let is_one = outcome.err.lines().count() == 1 && outcome.err.contains("--help` says");
        assert!(is_one && outcome.err.starts_with("invoke-runner: "), "{}", outcome.err);
    }
}

/// The first has it, and the others cannot be opened.
#[test]
fn a_name_for_several_processes_of_a_machine_is_an_error_of_all() {
    let _watchdog = watchdog::Watchdog::start();
    let name = format!("sm://{}-of-all", std::process::id());
    let outcome = local(&format!("3 --url {name}"));
    assert_eq!((outcome.code, outcome.out.as_str()), (Some(1), ""), "{}", outcome.all());
    let said = |words: &str| outcome.err.matches(words).count();
    assert!(said("one process of a machine only") >= 1, "{}", outcome.err);
    assert!(said("cannot open its workers: ") >= 1, "{}", outcome.err);
}

#[test]
fn a_reader_that_has_enough_is_no_error() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command(RUNNER, &["--local", "2", "--count", "10"]).stdout(writer).output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), said.as_ref()), (Some(0), ""));
}

#[test]
fn sixty_four_processes_of_two_threads_call_all_and_keep_to_the_memory_that_is_documented() {
    let outcome = local("64 --threads 2 --count 1280 --warm-up 0");
    let total = total(&outcome, 128);
    assert_eq!(total["channels"], 128 * 128, "with all, itself included: {total}");
    // As in COSTS.md: two connections where both sides begin, and the blocks; what a process is without any is more in a debug build.
    let in_debug = 12 * 1024 + 2 * 126 * (2 * 23 + 1) + 2 * 64 * 4;
    let most = if cfg!(debug_assertions) { in_debug } else { 18 * 1024 };
    assert!(total["peak_rss_kib"].as_u64() <= Some(most), "{most} KiB: {total}");
    // Four a connection, of which a pair has one or two; and some that a process has without any.
    let of_connections = 4 * 2 * 126..=2 * 4 * 2 * 126 + 64;
    let descriptors = total["descriptors"].as_u64().unwrap();
    assert!(of_connections.contains(&descriptors), "{of_connections:?}: {descriptors}");
}
