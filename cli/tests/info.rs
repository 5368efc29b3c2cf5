//! `hydrargyrum info` as a process: what it prints, how it ends, and what it says when something is missing.

use std::{
    collections::BTreeMap,
    process::{Command, Output, Stdio},
};

use serde_json::Value;

/// Keys of a line of `--json`, as `hydrargyrum info --help` documents them.
const KEYS: [&str; 10] = [
    "plugin", "url", "settings", "provider", "domain", "address", "state", "missing", "caps",
    "facts",
];

fn hg(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hydrargyrum"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Standard output of a run that ends with this status and says nothing on standard error.
fn printed(command: &mut Command, status: i32) -> String {
    let Output { status: ended, stdout, stderr } = command.output().expect("hg starts");
    let said = String::from_utf8(stderr).expect("text");
    assert_eq!((ended.code(), said.as_str()), (Some(status), ""), "{command:?}");
    String::from_utf8(stdout).expect("text")
}

/// The one line on standard error of a run whose command line is wrong.
fn refused(arguments: &[&str]) -> String {
    // Opening everything that libfabric has takes a while.
    let output = hg(arguments).env("HG_LIBFABRIC", "/nowhere").output();
    let Output { status, stdout, stderr } = output.expect("hg starts");
    let said = String::from_utf8(stderr).expect("text");
    assert_eq!((status.code(), stdout.len()), (Some(2), 0), "{arguments:?}: {said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn text<'a>(line: &'a Value, key: &str) -> &'a str {
    line[key].as_str().unwrap_or_else(|| panic!("{key} of {line}"))
}

#[test]
fn every_plugin_is_in_the_table_which_fits_a_terminal() {
    let table = printed(&mut hg(&["info"]), 0);
    for word in ["\nsm      sm:// ", "\ntcp     tcp:// ", "ofi+shm://", "sm+tcp://", "cma", "node"]
    {
        assert!(table.contains(word), "{word}: {table}");
    }
    assert!(table.lines().all(|line| line.len() <= 80), "{table}");
    assert!(!table.contains('\u{1b}'), "colours: {table}");
    assert!(!table.contains("`hydrargyrum info`"), "it advises itself: {table}");
}

#[test]
fn the_table_names_those_that_can_only_be_polled_and_no_others() {
    let table = printed(&mut hg(&["info"]), 0);
    let (_, rest) = table.split_once("\nPolled\n").unwrap_or_default();
    let polled = rest.split("\n\n").next().unwrap_or_default();
    for line in lines(&printed(&mut hg(&["info", "--json"]), 0)) {
        let Some(sleep) = line["caps"]["sleep"].as_str() else { continue };
        let is_named = polled.split_whitespace().any(|word| word == text(&line, "url"));
        assert_eq!(is_named, ["steps", "poll"].contains(&sleep), "{line}: {table}");
    }
    let says_how = polled.is_empty() || polled.contains("nothing to sleep on");
    assert!(says_how, "{table}");
}

#[test]
fn each_line_of_json_has_the_documented_keys_and_no_other() {
    let help = printed(&mut hg(&["info", "--help"]), 0);
    for line in lines(&printed(&mut hg(&["info", "--json"]), 0)) {
        let keys: Vec<&String> = line.as_object().unwrap().keys().collect();
        assert!(
            keys.len() == KEYS.len() && KEYS.iter().all(|key| line.get(key).is_some()),
            "{line}"
        );
        for key in keys {
            assert!(help.contains(&format!("\n  {key} ")), "{key} is not documented");
        }
        let is_missing = text(&line, "state") == "missing";
        assert!(is_missing || text(&line, "state") == "available", "{line}");
        assert_eq!(is_missing, line["missing"].is_string(), "{line}");
        assert_eq!(is_missing, line["caps"].is_null(), "{line}");
    }
}

#[test]
fn whatever_is_listed_as_available_opens_an_engine() {
    for offer in hg::offers().iter().filter(|offer| offer.is_available()) {
        let mut builder = hg::builder().listen(true);
        for (name, value) in &offer.settings {
            builder = builder.setting(name, value);
        }
        if let Err(error) = builder.open(offer.url.as_str()) {
            // An interface may have gone since.
            let is_still = hg::offers().iter().any(|it| it.url == offer.url && it.is_available());
            assert!(!is_still, "{}: {error}", offer.url);
        }
    }
}

#[test]
fn the_order_is_the_same_every_time() {
    // Interfaces come and go: some two runs in a row must agree.
    let urls = || -> Vec<String> {
        let all = lines(&printed(&mut hg(&["info", "--json"]), 0));
        all.iter().map(|line| text(line, "url").to_owned()).collect()
    };
    let mut before = urls();
    for _ in 0..5 {
        let now = urls();
        if now == before {
            return;
        }
        before = now;
    }
    panic!("no two runs agree: {before:?}");
}

#[test]
fn a_scheme_a_plugin_and_the_beginning_of_a_url_choose() {
    let urls = |asked: &str| -> Vec<String> {
        let all = lines(&printed(&mut hg(&["info", "--json", asked]), 0));
        all.iter().map(|line| text(line, "url").to_owned()).collect()
    };
    assert_eq!(urls("sm"), ["sm://"]);
    assert_eq!(urls("ofi+shm"), ["ofi+shm://"]);
    assert!(urls("ofi").iter().all(|url| url.starts_with("ofi+")));
    assert_eq!(urls("tcp://127.0.0.1"), ["tcp://127.0.0.1"]);
}

#[test]
fn a_wrong_command_line_is_one_sentence_with_what_to_do() {
    for (arguments, words) in [
        (&["info", "quic"][..], "`hydrargyrum info` lists"),
        (&["info", "quic://a"], "`hydrargyrum info` lists"),
        (&["info", ""], "`hydrargyrum info` lists"),
        (&["info", "a\nb"], "`hydrargyrum info` lists"),
        (&["info", "tcp://203.0.113.7"], "`hydrargyrum info tcp` lists"),
        (&["info", "--colour"], "--help"),
        (&["info", "sm", "tcp"], "--help"),
        (&["inform"], "--help"),
        (&["inf"], "unrecognized subcommand 'inf': `info`?"),
        (&[], "info, ping; `hydrargyrum --help`"),
    ] {
        let said = refused(arguments);
        assert!(said.starts_with("hydrargyrum: ") && said.contains(words), "{arguments:?}: {said}");
    }
}

#[test]
fn help_and_version_are_no_mistakes() {
    for arguments in [&["--help"][..], &["info", "--help"], &["ping", "--help"]] {
        let help = printed(&mut hg(arguments), 0);
        assert!(help.ends_with('\n') && help.lines().all(|line| line.len() <= 80), "{help}");
    }
    assert!(printed(&mut hg(&["--version"]), 0).starts_with("hydrargyrum "));
}

#[test]
fn without_libfabric_it_says_what_to_install_and_lists_the_rest() {
    let without = |arguments: &[&str]| -> Command {
        let mut command = hg(arguments);
        command.env("HG_LIBFABRIC", "/nowhere/libfabric.so.1");
        command
    };
    let table = printed(&mut without(&["info"]), 0);
    assert!(table.contains("\nsm      sm://") && table.contains("\ntcp     tcp://"), "{table}");
    assert_eq!(table.matches("HG_LIBFABRIC names").count(), 1, "{table}");
    for line in lines(&printed(&mut without(&["info", "--json", "ofi"]), 1)) {
        assert_eq!(text(&line, "state"), "missing");
        let why = text(&line, "missing");
        assert!(
            why.contains("/nowhere/libfabric.so.1") && why.contains("apt-get install"),
            "{why}"
        );
    }
    printed(&mut without(&["info", "sm"]), 0);
}

#[test]
fn a_sandbox_without_interfaces_is_told_how_to_get_one() {
    let test = "a_sandbox_without_interfaces_is_told_how_to_get_one";
    let alone = |program: &str| -> Command {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--net", program]).stdin(Stdio::null());
        command
    };
    let lacking = match alone("true").output() {
        Ok(output) if output.status.success() => None,
        Ok(_) => Some("no right to make user namespaces"),
        Err(_) => Some("unshare is not installed"),
    };
    if let Some(lacking) = lacking {
        #[expect(clippy::print_stderr, reason = "the test runner reads skips there")]
        return eprintln!("SKIPPED: {test}: {lacking}");
    }
    let listed =
        lines(&printed(alone(env!("CARGO_BIN_EXE_hydrargyrum")).args(["info", "--json"]), 0));
    let state: BTreeMap<&str, &Value> =
        listed.iter().map(|line| (text(line, "url"), line)).collect();
    assert_eq!(text(state["sm://"], "state"), "available");
    for url in ["tcp://", "sm+tcp://", "ofi+tcp://", "sm+ofi+tcp://"] {
        assert_eq!(text(state[url], "state"), "missing", "{url}");
        assert!(text(state[url], "missing").contains("ip link set lo up"), "{}", state[url]);
    }
    let refused = printed(alone(env!("CARGO_BIN_EXE_hydrargyrum")).args(["info", "tcp"]), 1);
    assert!(refused.starts_with("Nothing of this is available.\n"), "{refused}");
}

#[test]
fn a_reader_who_has_seen_enough_is_no_error_and_a_full_disk_is() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let cut_off = hg(&["info", "--help"]).stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert_eq!((cut_off.status.code(), cut_off.stderr), (Some(0), Vec::new()));
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let full = hg(&["info", "--help"]).stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(full.status.code(), Some(1));
    assert!(String::from_utf8(full.stderr).unwrap().starts_with("hydrargyrum: standard output"));
}

#[test]
fn a_daemon_that_answers_is_shown_with_its_network_its_limits_and_its_applications() {
    let mut config = hg_visor::Config::over("tcp://127.0.0.1:0");
    config.name = format!("info-{}", std::process::id());
    config.connections = 77;
    let name = config.name.clone();
    let mut daemon = hg_visor::Daemon::open(config).expect("it opens");
    let (address, stopper) = (daemon.address().to_string(), daemon.stopper());
    let serves = std::thread::spawn(move || daemon.run());
    let all = lines(&printed(hg(&["info", "--json", "visor"]).env("HG_VISOR", &name), 0));
    let table = printed(hg(&["info", "visor"]).env("HG_VISOR", &name), 0);
    stopper.stop();
    serves.join().expect("it does not panic").expect("it serves");
    assert_eq!((all.len(), text(&all[0], "address")), (1, &*address), "{all:?}");
    let facts = &all[0]["facts"];
    assert_eq!((text(facts, "max_connections"), text(facts, "daemon")), ("77", &*name), "{facts}");
    assert!(table.contains("visor://") && table.contains("applications"), "{table}");
}

#[test]
fn without_a_daemon_its_transport_is_missing_with_what_to_do() {
    let nobody = "no-daemon-of-this-name";
    let all = lines(&printed(hg(&["info", "--json", "visor"]).env("HG_VISOR", nobody), 1));
    let missing = text(&all[0], "missing");
    assert!(
        all.len() == 1 && missing.contains(nobody) && missing.contains("HG_VISOR"),
        "{missing}"
    );
}
