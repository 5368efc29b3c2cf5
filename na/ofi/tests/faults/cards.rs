//! Several cards, keys and classes of traffic, over the machine's libfabric that is made to say that it has two cards
//! (`tests/imitation/cards.c`): what no machine here has is imitated.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{Arc, OnceLock},
};

use hg_na::{Device, Memory, Rights, Segment};
use hg_na_ofi::PATH_VARIABLE;

use super::{MARK, open, said, sentence};

/// Set in a process that opens a URL: the settings, as `name=value`.
const SETTINGS: &str = "HG_TEST_CARD_SETTINGS";
/// What the imitation reads; no machine has devices there.
const BUSES: &str = "HG_TEST_CARDS";

/// An imitation of this name, compiled; `None`: the headers of libfabric are not here.
pub(crate) fn imitation(name: &str) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/imitation/{name}.c"));
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let library = folder.join(format!("{name}-{}.so", std::process::id()));
    let headers = Command::new("cc")
        .args(["-E", "-include", "rdma/fabric.h", "-x", "c", "/dev/null", "-o", "/dev/null"])
        .output();
    if !headers.is_ok_and(|output| output.status.success()) {
        return None;
    }
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .arg("-ldl")
        .status();
    assert!(built.unwrap().success());
    // At once in its place, where another process may be loading the same.
    let shared = folder.join(format!("{name}.so"));
    std::fs::rename(&library, &shared).unwrap();
    Some(shared)
}

/// That of cards.
fn cards() -> Option<&'static PathBuf> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT.get_or_init(|| imitation("cards")).as_ref()
}

/// Opens a URL over the imitation, and says over what.
#[test]
#[expect(clippy::print_stdout, reason = "its one word to its parent")]
fn a_process_with_cards() {
    let Ok(settings) = env::var(SETTINGS) else { return };
    let settings: Vec<_> = settings.split(',').filter_map(|it| it.split_once('=')).collect();
    match open("ofi+tcp://127.0.0.1", &settings) {
        Ok(domain) => {
            drop(domain.context(0).unwrap());
            println!("{MARK}{domain:?}");
        }
        Err(error) => println!("{MARK}{error}"),
    }
}

fn opened(settings: &str, local_rank: &str) -> Option<Output> {
    let process = Command::new(env::current_exe().unwrap())
        .args(["--exact", "cards::a_process_with_cards", "--nocapture"])
        .env(PATH_VARIABLE, cards()?)
        .env(SETTINGS, settings)
        .env(BUSES, "fe ff")
        .env("OMPI_COMM_WORLD_LOCAL_RANK", local_rank)
        .output();
    process.ok()
}

#[expect(clippy::print_stdout, reason = "says what is skipped")]
pub(crate) fn skipped(name: &str) {
    println!("SKIPPED: {name}: libfabric-dev is not installed");
}

#[test]
fn processes_of_a_node_share_its_cards_and_a_domain_that_is_named_is_taken() {
    for (settings, local_rank, card) in [
        ("", "0", "card0"),
        ("", "1", "card1"),
        ("", "2", "card1"),
        ("", "3", "card0"),
        ("domain=card0", "1", "card0"),
        ("domain=card1", "0", "card1"),
    ] {
        let Some(output) = opened(settings, local_rank) else {
            return skipped(
                "processes_of_a_node_share_its_cards_and_a_domain_that_is_named_is_taken",
            );
        };
        let said = said(&output);
        assert!(said.contains(&format!(" on {card})")), "{settings} {local_rank}: {said}");
    }
}

#[test]
fn a_key_and_a_class_of_traffic_reach_libfabric() {
    for (settings, asked) in [
        ("auth-key=00ff10", "asked: key 00ff10 twice class 0 0"),
        ("traffic-class=low-latency", "asked: key  twice class 201 201"),
    ] {
        let Some(output) = opened(settings, "0") else {
            return skipped("a_key_and_a_class_of_traffic_reach_libfabric");
        };
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(told.contains(asked), "{settings}: {told}");
    }
}

#[test]
#[expect(unsafe_code, reason = "memory that nobody may touch")]
fn memory_of_devices_is_refused_by_name_where_it_is_not_reached() {
    let said = sentence("ofi+tcp://127.0.0.1", &[("device-memory", "on"), ("rma", "off")]);
    assert!(said.contains("`device-memory`") && said.contains("one-sidedly alone"), "{said}");
    // libfabric's tcp reaches none in some versions.
    if let Err(why) = open("ofi+tcp://127.0.0.1", &[("device-memory", "on")]) {
        assert!(why.to_string().contains("tcp reaches no memory of devices here"), "{why}");
    }
    for (settings, is_reached) in [(&[][..], false), (&[("device-memory", "on")], true)] {
        let domain = open("ofi+shm://", settings).unwrap();
        assert_eq!(domain.caps().device_memory, is_reached);
        let segment = Segment { address: 8, len: 8 };
        // SAFETY:
        // - there is no such device: nothing reaches it.
        let memory =
            unsafe { Memory::on_device(Device::Cuda(0), vec![segment], true, Arc::new(())) };
        // Whether the setting is missing, or, once it is there, such a device.
        let why = domain.register(memory, Rights::all()).map(drop).unwrap_err().to_string();
        let is_named = if is_reached {
            why.contains("shm") && why.contains("Cuda(0)")
        } else {
            why.contains("device-memory")
        };
        assert!(is_named, "{why}");
    }
}

#[test]
fn a_key_that_a_provider_does_not_take_is_named() {
    let said = sentence("ofi+tcp://127.0.0.1", &[("auth-key", "00ff10")]);
    assert!(said.contains("`auth-key`") && said.contains("tcp takes no such value"), "{said}");
}
