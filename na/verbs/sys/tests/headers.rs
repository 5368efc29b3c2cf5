//! The declarations agree with the C headers of libibverbs, where a machine has them.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]
#![expect(clippy::print_stdout, reason = "says what is skipped")]

use std::{
    collections::HashMap,
    fmt::Write as _,
    path::PathBuf,
    process::{Command, Output},
};

use hg_na_verbs_sys::{self as sys, layout::LAYOUTS};

macro_rules! constants {
    ($($name:ident),* $(,)?) => { &[$((concat!("IBV_", stringify!($name)), sys::$name as i64)),*] };
}

/// Constants with C's names and what is declared for them.
const CONSTANTS: &[(&str, i64)] = constants![
    PORT_ACTIVE,
    LINK_LAYER_ETHERNET,
    QPT_RC,
    QPS_INIT,
    QPS_RTR,
    QPS_RTS,
    QPS_ERR,
    QP_STATE,
    QP_ACCESS_FLAGS,
    QP_PKEY_INDEX,
    QP_PORT,
    QP_AV,
    QP_PATH_MTU,
    QP_TIMEOUT,
    QP_RETRY_CNT,
    QP_RNR_RETRY,
    QP_RQ_PSN,
    QP_MAX_QP_RD_ATOMIC,
    QP_MIN_RNR_TIMER,
    QP_SQ_PSN,
    QP_MAX_DEST_RD_ATOMIC,
    QP_DEST_QPN,
    ACCESS_LOCAL_WRITE,
    ACCESS_REMOTE_WRITE,
    ACCESS_REMOTE_READ,
    WR_RDMA_WRITE,
    WR_SEND,
    WR_SEND_WITH_IMM,
    WR_RDMA_READ,
    SEND_SIGNALED,
    SEND_INLINE,
    EVENT_CQ_ERR,
    EVENT_QP_FATAL,
    EVENT_QP_REQ_ERR,
    EVENT_QP_ACCESS_ERR,
    EVENT_PATH_MIG_ERR,
    EVENT_DEVICE_FATAL,
    EVENT_PORT_ACTIVE,
    EVENT_PORT_ERR,
    EVENT_SRQ_ERR,
    EVENT_QP_LAST_WQE_REACHED,
    WC_SUCCESS,
    WC_WR_FLUSH_ERR,
    WC_RETRY_EXC_ERR,
    WC_RECV,
];
/// Fields inside of other structures and unions.
const INNER: &[(&str, &str, i64)] = &[
    ("ibv_send_wr", "wr.rdma.remote_addr", 40),
    ("ibv_send_wr", "wr.rdma.rkey", 48),
    ("ibv_srq_init_attr", "attr.max_wr", 8),
    ("ibv_srq_init_attr", "attr.srq_limit", 16),
];

/// A C program that prints each size, offset and number under its name.
fn program() -> String {
    let mut text = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\nint main(void) {\n",
    );
    let mut field = |name: &str, field: &str| {
        writeln!(text, "printf(\"{name}.{field} %zu\\n\", offsetof(struct {name}, {field}));")
            .unwrap();
    };
    for layout in LAYOUTS {
        layout.fields.iter().for_each(|(it, _)| field(layout.name, it));
    }
    INNER.iter().for_each(|(name, it, _)| field(name, it));
    for name in LAYOUTS.iter().map(|layout| layout.name) {
        writeln!(text, "printf(\"{name} %zu\\n\", sizeof(struct {name}));").unwrap();
    }
    for (name, _) in CONSTANTS {
        writeln!(text, "printf(\"{name} %lld\\n\", (long long) {name});").unwrap();
    }
    text + "printf(\"ibv_gid %zu\\n\", sizeof(union ibv_gid));\nreturn 0;\n}\n"
}

/// What C says; `Err` with a reason when it cannot be asked.
fn ask_c() -> Result<HashMap<String, i64>, String> {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (source, binary) = (directory.join("verbs.c"), directory.join("verbs"));
    std::fs::write(&source, program()).unwrap();
    let has_headers = Command::new("cc")
        .args(["-E", "-include", "infiniband/verbs.h", "-x", "c", "/dev/null", "-o", "/dev/null"])
        .output()
        .map_err(|_| "cc is not installed".to_owned())?;
    if !has_headers.status.success() {
        return Err("libibverbs-dev is not installed".to_owned());
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
    let number = |of: usize| i64::try_from(of).unwrap();
    for layout in LAYOUTS {
        match layout.size {
            // The library fills it, and later versions have more: there is room behind what is declared.
            Some(size) if layout.name == "ibv_port_attr" => {
                assert!(said[layout.name] <= number(size), "room for {}", layout.name);
            }
            Some(size) => assert_eq!(said[layout.name], number(size), "size of {}", layout.name),
            None => {}
        }
        for (field, offset) in layout.fields {
            let name = format!("{}.{field}", layout.name);
            assert_eq!(said[&name], number(*offset), "offset of {name}");
        }
    }
    for (name, field, offset) in INNER {
        assert_eq!(said[&format!("{name}.{field}")], *offset, "offset of {name}.{field}");
    }
    for (name, number) in CONSTANTS {
        assert_eq!(said[*name], *number, "{name}");
    }
    assert_eq!(said["ibv_gid"], 16);
    assert_eq!(said["ibv_context"], 328, "the library's, as it was when this was written");
}

#[test]
fn the_library_answers_when_it_is_there() {
    match sys::library() {
        Ok(_) => {}
        Err(missing @ sys::Missing::NotFound { .. }) => {
            assert!(missing.to_string().contains("apt-get install"));
            println!("SKIPPED: the_library_answers_when_it_is_there: libibverbs1 is not installed");
        }
        Err(other) => panic!("{other}"),
    }
}
