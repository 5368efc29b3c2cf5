//! The program `mcts-hex`, run as its users do.
#![cfg(feature = "cli")]

use std::{
    io::Write as _,
    process::{Command, Output, Stdio},
};

use watchdog::{Watchdog, ended};

fn run(words: &[&str], typed: impl AsRef<[u8]>) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_mcts-hex"))
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program is built");
    let mut stdin = program.stdin.take().expect("piped");
    stdin.write_all(typed.as_ref()).expect("the program reads");
    drop(stdin);
    ended(&mut program)
}

/// What a run that succeeds prints.
fn printed(words: &[&str], typed: &str) -> String {
    let output = run(words, typed);
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

fn json(words: &[&str]) -> serde_json::Value {
    serde_json::from_str(&printed(words, "")).expect("JSON")
}

#[test]
fn the_best_move_is_printed_alone() {
    let _watchdog = Watchdog::start();
    let words = ["--size", "3", "--rollouts", "2000", "best", "a1"];
    assert_eq!(printed(&words, ""), "b2\n");
    // The game is over.
    let over = ["--size", "2", "best", "a1 b1 a2"];
    assert_eq!(printed(&over, ""), "none\n");
}

#[test]
fn a_game_that_nobody_sees_any_more_ends_though_moves_are_typed() {
    let _watchdog = Watchdog::start();
    let mut program = Command::new(env!("CARGO_BIN_EXE_mcts-hex"))
        .args(["--size", "5", "--rollouts", "10", "play"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program is built");
    drop(program.stdout.take());
    let mut typed = program.stdin.take().expect("piped");
    // Refused each time: it is asked for again and again.
    while typed.write_all(b"z99\n").is_ok() {}
    assert!(program.wait().expect("a child").success());
}

#[test]
fn games_that_nobody_reads_are_not_played_to_their_ends() {
    let _watchdog = Watchdog::start();
    let mut program = Command::new(env!("CARGO_BIN_EXE_mcts-hex"))
        .args(["self-play", "--size=19", "--time=1"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program is built");
    drop(program.stdout.take());
    assert!(program.wait().expect("a child").success());
}

#[test]
fn what_was_found_is_not_lost_with_a_picture_that_cannot_be_written() {
    let _watchdog = Watchdog::start();
    let words = ["--size=3", "--rollouts=2000", "--plot=/dev/full", "best", "a1"];
    let output = run(&words, "");
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(1), &b"b2\n"[..]));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/dev/full cannot be written"));
}

#[test]
fn an_analysis_is_text_or_json_and_a_picture() {
    let _watchdog = Watchdog::start();
    let file = std::env::temp_dir().join(format!("mcts-hex-{}.svg", std::process::id()));
    let plot = file.to_str().expect("a plain path");
    let base = ["analyze", "--size=4", "--rollouts=100000", "--threads=2", "a2"];
    let found = json(&[&base[..], &["--json", "--plot", plot]].concat());
    assert_eq!((&found["best"], &found["size"]), (&"b3".into(), &4.into()));
    assert_eq!(found["settings"]["threads"], "2");
    let threads = found["threads"].as_array().expect("a list");
    let sum: u64 = threads.iter().filter_map(|it| it["simulations"].as_u64()).sum();
    assert!(threads.len() == 2 && sum > 0);
    for left in ["under_way", "waiting", "unbalanced_nodes"] {
        assert_eq!(found["left_over"][left], 0);
    }
    let picture = std::fs::read_to_string(&file).expect("a picture");
    std::fs::remove_file(&file).expect("it is there");
    assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
    assert_eq!(picture.matches("<polygon").count(), 16);
    let text = printed(&base, "");
    assert!(text.contains("line: b3") && text.contains("thread 1:"), "{text}");
}

#[test]
fn games_are_played_to_their_ends() {
    let _watchdog = Watchdog::start();
    let game = json(&["self-play", "--size=4", "--rollouts=500", "--json"]);
    assert_eq!(game["winner"], "first");
    let base = ["match", "--size=3", "--rollouts=200", "--games=6", "--json"];
    let even =
        json(&[&base[..], &["--against", "parallel=tree,virtual-loss=count,threads=2"]].concat());
    assert_eq!(even["games"], 6);
    let [least, most] = [0, 1].map(|at| even["part_95"][at].as_f64().expect("a number"));
    let part = even["part"].as_f64().expect("a number");
    assert!(0.0 <= least && least <= part && part <= most && most <= 1.0, "{even}");
    // What one side's one tree needs is not inherited by the other side's; each has a budget of its own.
    let words =
        ["match", "--parallel=tree", "--window=9", "--size=2", "--games=2", "--rollouts=50"];
    printed(&[&words[..], &["--against=parallel=root,time=0.01,placement=hash"]].concat(), "");
    let text = printed(&["match", "--size=3", "--rollouts=50", "--games=2"], "");
    assert!(text.contains("Wilson") && text.contains("Elo:"), "{text}");
}

#[test]
fn somebody_who_types_plays_against_it() {
    let _watchdog = Watchdog::start();
    let words = ["play", "--size=3", "--rollouts=500"];
    let text = printed(&words, "a1\na1\n\nz\nc3\na3\nb3\nb1\nc1\n");
    assert!(text.contains("I play b2.") && text.contains("`a1` cannot be played here"), "{text}");
    assert!(
        !text.contains("``")
            && text.contains("`z` is no move")
            && text.contains("O (left to right) wins."),
        "{text}"
    );
    assert!(printed(&words, "quit\n").ends_with("> "));
}

#[test]
fn gtp_is_spoken() {
    let _watchdog = Watchdog::start();
    let typed = "1 protocol_version\nboardsize 3\n\n# nothing\n2 play b a1\nplay b a1\n3 genmove w\nundo\nundo\nundo\n\
                 play black z9\nboardsize 99\nfinal_score\nknown_command genmove\nfoo\n7\n\u{1}name\nquit\nname\n";
    let text = printed(&["--gtp", "--rollouts=1000"], typed);
    let answers: Vec<&str> = text.split("\n\n").map(str::trim).collect();
    let expected = [
        "=1 2",
        "=",
        "=2",
        "? illegal move",
        "=3 b2",
        "=",
        "=",
        "? cannot undo",
        "? `z9` cannot be played here",
        "? unacceptable size",
        "= cannot score",
        "= true",
        "? unknown command",
        "?7 unknown command",
        "= mcts-hex",
        "=",
        "",
    ];
    assert_eq!(answers, expected);
}

/// The answers to commands, a line each.
fn gtp_answers(words: &[&str], typed: &str) -> Vec<String> {
    let text = printed(&[&["--gtp"], words].concat(), typed);
    text.trim_end().split("\n\n").map(|it| it.trim().to_owned()).collect()
}

#[test]
fn in_gtp_colours_need_not_take_turns() {
    let _watchdog = Watchdog::start();
    let typed = "boardsize 3\nplay w b1\nplay w b2\nplay w c2\ngenmove w\nfinal_score\nplay b a1\nundo\nplay b a2\ngenmove b\n";
    let answers = gtp_answers(&["--rollouts=3000"], typed);
    let over = ["= W+", "? the game is over", "=", "="];
    assert_eq!(answers[5..9], over, "{answers:?}");
    assert!(
        answers[4].starts_with("= a") && answers[9].starts_with("= ") && answers[9] != "= resign",
        "{answers:?}"
    );
    // Who moves twice has not been offered the stone.
    let typed = "boardsize 3\nplay b b2\nplay b swap\nplay w swap\nundo\nplay b c2\nplay w swap\n";
    let answers = gtp_answers(&["--swap"], typed);
    assert_eq!(answers[2..], ["? illegal move", "=", "=", "=", "? illegal move"]);
}

#[test]
fn in_gtp_a_player_who_resigns_has_lost_until_that_is_undone() {
    let _watchdog = Watchdog::start();
    let typed = "boardsize 2 2\nplay black a1\nplay white resign\nfinal_score\nplay white b1\nundo\nfinal_score\n\
                 play white b1\nplay black a2\ngenmove white\nundo\nundo\nplay black b2\n";
    let expected = "=|=|=|= B+|? the game is over|=|= cannot score|=|=|= resign|=|=|=";
    assert_eq!(gtp_answers(&[], typed).join("|"), expected);
}

#[test]
fn what_cannot_be_written_is_said() {
    let _watchdog = Watchdog::start();
    let small = ["--size=3", "--rollouts=20"];
    for words in [
        &["best"][..],
        &["analyze", "--json"],
        &["--json", "--plot=/dev/full"],
        &["self-play"],
        &["match", "--games=2"],
        &["play"],
        &["--gtp"],
    ] {
        let mut program = Command::new(env!("CARGO_BIN_EXE_mcts-hex"));
        let full = std::fs::File::options().write(true).open("/dev/full").expect("Linux has it");
        program.args(small).args(words).stdin(Stdio::piped()).stdout(full).stderr(Stdio::piped());
        let mut program = program.spawn().expect("the program is built");
        // It may have ended before it reads.
        let _ = program.stdin.take().expect("piped").write_all(b"name\n");
        let output = program.wait_with_output().expect("a child");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {text}");
        assert!(text.contains(" cannot be written: No space left"), "{words:?}: {text}");
    }
}

#[test]
fn gtp_goes_on_after_what_is_no_text_and_ends_with_its_input() {
    let _watchdog = Watchdog::start();
    let typed =
        [b"\xff\xfe\0name\n", &b"x".repeat(1 << 20)[..], b"\nname\nboardsize 5\ngenm"].concat();
    let output = run(&["--gtp"], typed);
    let text = String::from_utf8_lossy(&output.stdout);
    let answers: Vec<&str> = text.split("\n\n").map(str::trim).collect();
    let unknown = "? unknown command";
    assert_eq!(answers, [unknown, unknown, "= mcts-hex", "=", unknown, ""]);
    assert!(output.status.success());
}

#[test]
fn what_is_wrong_is_one_sentence() {
    let _watchdog = Watchdog::start();
    let cases: [(&[&str], i32, &str); 30] = [
        (&["--size=1"], 1, "a board of 1x1 is not between 2x2 and 19x19"),
        (&["best", "a1 a1"], 1, "`a1` cannot be played here"),
        (&["--threads=0"], 2, "invalid value '0' for '--threads <N>': 0 is not in 1..=65535"),
        (&["--rollouts=0"], 2, "invalid value '0' for '--rollouts <N>'"),
        (&["--local=0"], 2, "invalid value '0' for '--local <N>'"),
        (&["--time", "-1"], 2, "invalid value '-1' for '--time <SECONDS>': not a time"),
        (&["--time=0", "--size=3"], 1, "nothing was searched: give more time or rollouts"),
        (&["analyze", "--time=0", "--size=3"], 1, "nothing was searched"),
        (&["--plot=/nowhere/x.svg", "--time=1000"], 1, "/nowhere/x.svg cannot be written"),
        (
            &["match", "--games=3"],
            1,
            "--games: an even number of them, since each opening is played twice",
        ),
        (
            &["match", "--against=bogus=1"],
            1,
            "--against bogus=1: unexpected argument 'bogus' found",
        ),
        (
            &["--window=9"],
            1,
            "--window: has no effect with `--parallel merged`, where each thread has a tree",
        ),
        (
            &["--placement=local:1", "--parallel=root"],
            1,
            "--placement: has no effect with `--parallel root`",
        ),
        (&["--virtual-loss=count"], 1, "--virtual-loss: has no effect with `--parallel merged`"),
        (
            &["match", "--parallel=tree", "--window=9", "--against=parallel=root,window=8"],
            1,
            "--against parallel=root,window=8: window: has no effect",
        ),
        (&["--games=2"], 1, "--games: has no effect with `best`"),
        (&["play", "--json"], 1, "--json: has no effect with `play`"),
        (&["match", "--plot=x.svg"], 1, "--plot: has no effect with `match`"),
        (&["--bench", "--second"], 1, "--second: has no effect with `bench`"),
        (&["--gtp", "best", "a1"], 2, "cannot be used with"),
        (&["--exploration=nan"], 1, "exploration is NaN, and must be a number from 0 on"),
        (&["--local=2", "--size=20"], 1, "a board of 20x20 is not between"),
        (&["--local=2", "--threads=300"], 1, "--threads 300: from 1 to 255 in each process"),
        (&["--placement=near"], 2, "neither random, hash nor local:N"),
        (&["--url=tcp://127.0.0.1"], 1, "--url: has no effect in one process"),
        (&["--local=2", "--simulations=0"], 1, "simulations is 0, and must be from 1 to 1024"),
        (&["--local=40000", "--threads=2"], 1, "--local 40000: 80000 threads in all"),
        (&["match", "--size=2", "a1b1a2"], 1, "match: the game is over after these moves"),
        (&["--memory=64k", "--threads=2"], 1, "memory is 65536, and must be 209920 or more"),
        (&["--memory=1T"], 2, "not a number of bytes"),
    ];
    for (words, status, sentence) in cases {
        let output = run(words, "");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{words:?}: {text}");
        assert!(text.starts_with("mcts-hex: ") && text.contains(sentence), "{words:?}: {text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}
