//! Other programs of the library, drawn: its examples.

use std::{fs, path::PathBuf, process::Command};

use crate::{
    RUNNER,
    common::{File, Outcome, run},
};

/// Built as this test was, and beside it; it is another package's.
fn example(name: &str) -> String {
    let profile = PathBuf::from(RUNNER).parent().unwrap().to_owned();
    let example = profile.join("examples").join(name);
    if example.is_file() {
        return example.to_str().unwrap().to_owned();
    }
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "-q", "-p", "hydrargyrum-shuffle", "--example", name]);
    build.arg("--target-dir").arg(profile.parent().unwrap());
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    assert!(build.status().unwrap().success());
    example.to_str().unwrap().to_owned()
}

fn is_drawn(file: &File, outcome: &Outcome) {
    assert_eq!(outcome.code, Some(0), "{}", outcome.all());
    let text = fs::read_to_string(&file.0).unwrap();
    assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"), "{text}");
    for name in ["messages/s", "all ranks", "messages queued", "origin queues", "delivery"] {
        assert!(text.contains(&format!(">{name}</text>")), "{name}: {text}");
    }
    // Something was delivered: the highest point of the rate is at the top of its panel.
    assert!(text.contains(",20.0"), "{text}");
}

#[test]
fn each_example_is_drawn_as_a_run_of_the_runner_is() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/work.rs");
    for (name, words, said) in [
        ("histogram", &[][..], "400000 values of 4 ranks are in 1000 bins"),
        ("sort", &["20000"], "20000 keys in "),
        ("words", &[source], " different ones, at 4 ranks"),
    ] {
        let file = File::new(&format!("{name}.svg"));
        let outcome =
            run(RUNNER, &[&["--plot", file.text(), "--", &example(name)], words].concat(), &[]);
        is_drawn(&file, &outcome);
        assert!(outcome.out.contains(said), "{}", outcome.all());
    }
}

#[test]
fn so_are_the_ranks_of_another_program_that_the_runner_starts_on_imitated_nodes() {
    let file = File::new("started.svg");
    let local = ["--local", "3", "--nodes", "2+1", "--plot", file.text(), "--"];
    let outcome = run(RUNNER, &[&local[..], &[&example("histogram")]].concat(), &[]);
    is_drawn(&file, &outcome);
    assert!(outcome.out.starts_with("300000 values of 3 ranks"), "{}", outcome.all());
}

/// Of each rank and shuffle a file, from the start to the end.
#[test]
fn samples_of_a_program_begin_with_nothing_and_end_with_all_that_was_delivered() {
    let folder = File::new("samples");
    fs::create_dir(&folder.0).unwrap();
    let outcome = run(&example("histogram"), &[], &[("HG_SHUFFLE_SAMPLES", folder.text())]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.all());
    let files = fs::read_dir(&folder.0).unwrap().map(|file| file.unwrap().path());
    let ranks: Vec<Vec<Vec<u64>>> = files
        .map(|file| {
            let text = fs::read_to_string(file).unwrap();
            let numbers = |line: &str| line.split(' ').map(|word| word.parse().unwrap()).collect();
            text.lines().map(numbers).collect()
        })
        .collect();
    assert_eq!(ranks.len(), 4);
    for samples in &ranks {
        assert!(samples.iter().is_sorted_by_key(|sample| (sample[0], sample[1])), "{ranks:?}");
        assert_eq!(samples[0][1..], [0; 5], "{ranks:?}");
        // Nothing is left in a queue.
        assert_eq!(samples.last().unwrap()[2..], [0; 4], "{ranks:?}");
    }
    let delivered: u64 = ranks.iter().map(|samples| samples.last().unwrap()[1]).sum();
    assert_eq!(delivered, 400_000);
}

#[test]
fn a_program_that_cannot_leave_samples_says_so_and_goes_on() {
    let nowhere = [("HG_SHUFFLE_SAMPLES", "/no/folder")];
    let outcome = run(&example("histogram"), &[], &nowhere);
    assert_eq!(outcome.code, Some(0), "{}", outcome.all());
    assert!(outcome.err.contains("no samples of shuffles: /no/folder: "), "{}", outcome.all());
}

#[test]
fn who_cannot_be_drawn_is_told_why() {
    let file = File::new("nothing.svg");
    for (words, said) in [
        (&["--", "true"][..], "--plot: no process of true has made a shuffle here"),
        (&["--", "/no/program"], "/no/program cannot be run: "),
        (&["--nodes", "1+1", "--", "true"], "--nodes: with another program it goes with --local"),
        (&["--size", "64", "--", "true"], "cannot be used with"),
        (&["--local", "1000000", "--", "true"], "--local: "),
        (&["--local", "2", "--force", "--", "true"], "no process of true has made a shuffle here"),
    ] {
        let outcome = run(RUNNER, &[&["--plot", file.text()], words].concat(), &[]);
        assert!(outcome.code != Some(0) && outcome.err.contains(said), "{}", outcome.all());
    }
    let place = [("HG_JOB_RENDEZVOUS", "dir:/nowhere"), ("HG_JOB_SIZE", "3")];
    let below = [&place[..], &[("HG_JOB_RANK", "0")]].concat();
    let outcome = run(RUNNER, &["--plot", file.text(), "--", "true"], &below);
    let said = "a launcher goes behind the `--`, not before this program";
    assert!(outcome.code != Some(0) && outcome.err.contains(said), "{}", outcome.all());
}
