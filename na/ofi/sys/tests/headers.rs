//! The declarations agree with libfabric's C headers, where a machine has them.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]
#![expect(clippy::print_stdout, reason = "says what is skipped")]

use std::{
    collections::HashMap,
    fmt::Write as _,
    path::PathBuf,
    process::{Command, Output},
};

use hg_na_ofi_sys::{TRAFFIC_CLASSES, layout::LAYOUTS};

const HEADERS: [&str; 7] =
    ["fabric", "fi_domain", "fi_endpoint", "fi_cm", "fi_eq", "fi_rma", "fi_tagged"];

/// Constants with C's names and what is declared for them.
const CONSTANTS: &[(&str, u64)] = &[
    ("FI_MSG", hg_na_ofi_sys::MSG),
    ("FI_RMA", hg_na_ofi_sys::RMA),
    ("FI_TAGGED", hg_na_ofi_sys::TAGGED),
    ("FI_READ", hg_na_ofi_sys::READ),
    ("FI_WRITE", hg_na_ofi_sys::WRITE),
    ("FI_RECV", hg_na_ofi_sys::RECV),
    ("FI_TRANSMIT", hg_na_ofi_sys::TRANSMIT),
    ("FI_REMOTE_READ", hg_na_ofi_sys::REMOTE_READ),
    ("FI_REMOTE_WRITE", hg_na_ofi_sys::REMOTE_WRITE),
    ("FI_MULTI_RECV", hg_na_ofi_sys::MULTI_RECV),
    ("FI_COMPLETION", hg_na_ofi_sys::COMPLETION),
    ("FI_INJECT", hg_na_ofi_sys::INJECT),
    ("FI_DELIVERY_COMPLETE", hg_na_ofi_sys::DELIVERY_COMPLETE),
    ("FI_HMEM", hg_na_ofi_sys::HMEM),
    ("FI_SOURCE", hg_na_ofi_sys::SOURCE),
    ("FI_NUMERICHOST", hg_na_ofi_sys::NUMERIC_HOST),
    ("FI_PROV_ATTR_ONLY", hg_na_ofi_sys::PROV_ATTR_ONLY),
    ("FI_SELECTIVE_COMPLETION", hg_na_ofi_sys::SELECTIVE_COMPLETION),
    ("FI_CONTEXT", hg_na_ofi_sys::CONTEXT),
    ("FI_CONTEXT2", hg_na_ofi_sys::CONTEXT2),
    ("FI_BUFFERED_RECV", hg_na_ofi_sys::BUFFERED_RECV),
    ("FI_ORDER_SAS", hg_na_ofi_sys::ORDER_SAS),
    ("FI_ORDER_SAW", hg_na_ofi_sys::ORDER_SAW),
    ("FI_ADDR_UNSPEC", hg_na_ofi_sys::ADDR_UNSPEC),
    ("FI_KEY_NOTAVAIL", hg_na_ofi_sys::KEY_NOTAVAIL),
];

/// The same for those that are `int` in C.
const NUMBERS: &[(&str, i32)] = &[
    ("FI_MR_LOCAL", hg_na_ofi_sys::MR_LOCAL),
    ("FI_MR_VIRT_ADDR", hg_na_ofi_sys::MR_VIRT_ADDR),
    ("FI_MR_ALLOCATED", hg_na_ofi_sys::MR_ALLOCATED),
    ("FI_MR_PROV_KEY", hg_na_ofi_sys::MR_PROV_KEY),
    ("FI_MR_ENDPOINT", hg_na_ofi_sys::MR_ENDPOINT),
    ("FI_MR_HMEM", hg_na_ofi_sys::MR_HMEM),
    ("FI_HMEM_CUDA", hg_na_ofi_sys::HMEM_CUDA),
    ("FI_HMEM_ROCR", hg_na_ofi_sys::HMEM_ROCR),
    ("FI_HMEM_ZE", hg_na_ofi_sys::HMEM_ZE),
    ("FI_EP_RDM", hg_na_ofi_sys::EP_RDM),
    ("FI_AV_TABLE", hg_na_ofi_sys::AV_TABLE),
    ("FI_THREAD_DOMAIN", hg_na_ofi_sys::THREAD_DOMAIN),
    ("FI_THREAD_SAFE", hg_na_ofi_sys::THREAD_SAFE),
    ("FI_RM_ENABLED", hg_na_ofi_sys::RM_ENABLED),
    ("FI_CQ_FORMAT_MSG", hg_na_ofi_sys::CQ_FORMAT_MSG),
    ("FI_CQ_FORMAT_DATA", hg_na_ofi_sys::CQ_FORMAT_DATA),
    ("FI_WAIT_NONE", hg_na_ofi_sys::WAIT_NONE),
    ("FI_WAIT_FD", hg_na_ofi_sys::WAIT_FD),
    ("FI_OPT_ENDPOINT", hg_na_ofi_sys::OPT_ENDPOINT),
    ("FI_OPT_MIN_MULTI_RECV", hg_na_ofi_sys::OPT_MIN_MULTI_RECV),
    ("FI_BUS_PCI", hg_na_ofi_sys::BUS_PCI),
    ("FI_GETWAIT", hg_na_ofi_sys::GETWAIT),
    ("FI_ENABLE", hg_na_ofi_sys::ENABLE),
    ("FI_EAGAIN", hg_na_ofi_sys::errno::AGAIN),
    ("FI_ENODATA", hg_na_ofi_sys::errno::NODATA),
    ("FI_EAVAIL", hg_na_ofi_sys::errno::AVAIL),
    ("FI_ETRUNC", hg_na_ofi_sys::errno::TRUNC),
    ("FI_ECANCELED", hg_na_ofi_sys::errno::CANCELED),
];

/// C's name of a class of traffic.
fn class(name: &str) -> String {
    format!("FI_TC_{}", name.to_uppercase().replace('-', "_"))
}

/// A C program that prints `NAME NUMBER` for everything that is declared.
fn program() -> String {
    let mut text = String::from("#include <stddef.h>\n#include <stdio.h>\n#include <sys/uio.h>\n");
    for header in HEADERS.iter().chain(&["fi_errno"]) {
        writeln!(text, "#include <rdma/{header}.h>").unwrap();
    }
    text.push_str("int main(void) {\n");
    for layout in LAYOUTS {
        let name = layout.name;
        writeln!(text, "printf(\"{name} %zu\\n\", sizeof(struct {name}));").unwrap();
        for (field, _) in layout.fields {
            let field = field.trim_start_matches("r#");
            writeln!(text, "printf(\"{name}.{field} %zu\\n\", offsetof(struct {name}, {field}));")
                .unwrap();
        }
    }
    let classes = TRAFFIC_CLASSES.map(|(name, _)| class(name));
    let constants = CONSTANTS.iter().map(|(name, _)| *name);
    let numbers = NUMBERS.iter().map(|(name, _)| *name);
    for name in constants.chain(numbers).chain(classes.iter().map(String::as_str)) {
        writeln!(text, "printf(\"{name} %llu\\n\", (unsigned long long) {name});").unwrap();
    }
    text.push_str("return 0;\n}\n");
    text
}

/// What C says; `Err` with a reason when it cannot be asked.
fn ask_c() -> Result<HashMap<String, u64>, String> {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (source, binary) = (directory.join("layouts.c"), directory.join("layouts"));
    std::fs::write(&source, program()).unwrap();
    let has_headers = Command::new("cc")
        .args(["-E", "-include", "rdma/fabric.h", "-x", "c", "/dev/null", "-o", "/dev/null"])
        .output()
        .map_err(|_| "cc is not installed".to_owned())?;
    if !has_headers.status.success() {
        return Err("libfabric-dev is not installed".to_owned());
    }
    succeeded(&Command::new("cc").arg("-o").arg(&binary).arg(&source).output().unwrap());
    let output = Command::new(&binary).output().unwrap();
    succeeded(&output);
    let text = String::from_utf8(output.stdout).unwrap();
    let pair = |line: &str| {
        let (name, number) = line.split_once(' ').unwrap();
        (name.to_owned(), number.parse().unwrap())
    };
    Ok(text.lines().map(pair).collect())
}

fn succeeded(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn declarations_agree_with_the_headers() {
    let said = match ask_c() {
        Ok(said) => said,
        Err(reason) => {
            println!("SKIPPED: declarations_agree_with_the_headers: {reason}");
            return;
        }
    };
    for layout in LAYOUTS {
        if let Some(size) = layout.size {
            // Structures of the library's own may grow in later versions; they are never allocated here.
            assert!(said[layout.name] >= size as u64, "size of {}", layout.name);
        }
        for (field, offset) in layout.fields {
            let name = format!("{}.{}", layout.name, field.trim_start_matches("r#"));
            assert_eq!(said[&name], *offset as u64, "offset of {name}");
        }
    }
    for (name, number) in CONSTANTS {
        assert_eq!(said[*name], *number, "{name}");
    }
    for (name, number) in TRAFFIC_CLASSES {
        assert_eq!(said[&class(name)], u64::from(number), "{name}");
    }
    for (name, number) in NUMBERS {
        assert_eq!(said[*name], u64::try_from(*number).unwrap(), "{name}");
    }
}

#[test]
fn the_library_answers_when_it_is_there() {
    match hg_na_ofi_sys::library() {
        Ok(library) => {
            assert!(library.version() >= (1, 17));
            assert!(!library.strerror(hg_na_ofi_sys::errno::NODATA).is_empty());
        }
        Err(missing @ hg_na_ofi_sys::Missing::NotFound { .. }) => {
            assert!(missing.to_string().contains("apt-get install"));
            println!("SKIPPED: the_library_answers_when_it_is_there: libfabric1 is not installed");
        }
        Err(other) => panic!("{other}"),
    }
}
