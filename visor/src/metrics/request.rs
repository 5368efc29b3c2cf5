//! What somebody asks over HTTP, from the bytes that have come so far, and what is answered. No I/O.
//!
//! One request a connection: `GET /metrics` is answered with the figures, anything else with a refusal. Headers are not looked at.

use std::fmt::Write as _;

/// Longest head of a request in bytes.
pub(super) const HEAD_MAX: usize = 4096;

/// What has come so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    /// There is more to come.
    Unfinished,
    /// The figures.
    Metrics,
    /// Something else: a line of status.
    Refused(&'static str),
}

/// Reads it.
pub(super) fn read(bytes: &[u8]) -> Request {
    let Some(end) = bytes.windows(4).position(|part| part == b"\r\n\r\n") else {
        let is_long = bytes.len() >= HEAD_MAX;
        return if is_long { Request::Refused(TOO_LARGE) } else { Request::Unfinished };
    };
    if end + 4 > HEAD_MAX {
        return Request::Refused(TOO_LARGE);
    }
    let line = bytes[..end].split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let (method, target, version, rest) = (words.next(), words.next(), words.next(), words.next());
    let is_http = matches!(version, Some(b"HTTP/1.1" | b"HTTP/1.0")) && rest.is_none();
    let path = target.and_then(|target| target.split(|byte| *byte == b'?').next());
    match (method, path) {
        _ if !is_http => Request::Refused("400 Bad Request"),
        (_, Some(path)) if path != b"/metrics" => Request::Refused("404 Not Found"),
        (Some(b"GET"), Some(_)) => Request::Metrics,
        _ => Request::Refused("405 Method Not Allowed"),
    }
}

const TOO_LARGE: &str = "431 Request Header Fields Too Large";

/// A whole answer, after which the connection is closed.
pub(super) fn answer(status: &str, body: &str) -> Vec<u8> {
    let mut text = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n", body.len());
    text.push_str("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n");
    text.push_str("Allow: GET\r\nConnection: close\r\n\r\n");
    text.push_str(body);
    text.into_bytes()
}

/// What only grows, of a status.
const COUNTERS: [&str; 4] = ["connections_opened", "frames_passed", "bytes_passed", "disconnected"];

/// A daemon's status ([`crate::Question::Status`]) in the text format of Prometheus.
#[must_use]
pub fn prometheus(status: &str) -> String {
    let mut text = String::new();
    let status: serde_json::Value = serde_json::from_str(status).unwrap_or_default();
    for (name, value) in status.as_object().into_iter().flatten() {
        let number = value.as_u64().or_else(|| value.as_bool().map(u64::from));
        let Some(number) = number else { continue };
        let sort = if COUNTERS.contains(&name.as_str()) { "counter" } else { "gauge" };
        let _no_error = writeln!(text, "# TYPE hg_visor_{name} {sort}\nhg_visor_{name} {number}");
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn figures_are_given_to_whoever_gets_metrics_and_nothing_to_others() {
        let reads = |head: &str| read(head.as_bytes());
        for good in ["GET /metrics HTTP/1.1", "GET /metrics HTTP/1.0", "GET /metrics?x=1 HTTP/1.1"]
        {
            assert_eq!(reads(&format!("{good}\r\nHost: here\r\n\r\nbody")), Request::Metrics);
            assert_eq!(reads(&format!("{good}\r\n\r\n")), Request::Metrics);
            assert_eq!(reads(good), Request::Unfinished);
        }
        for (bad, status) in [
            ("POST /metrics HTTP/1.1", "405"),
            ("HEAD /metrics HTTP/1.1", "405"),
            ("GET / HTTP/1.1", "404"),
            ("GET /metrics/../status HTTP/1.1", "404"),
            ("GET /metrics HTTP/2", "400"),
            ("GET /metrics", "400"),
            ("GET  /metrics HTTP/1.1", "400"),
            ("", "400"),
        ] {
            let read = reads(&format!("{bad}\r\n\r\n"));
            assert!(matches!(read, Request::Refused(it) if it.starts_with(status)), "{bad}");
        }
        let long = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(HEAD_MAX));
        assert_eq!(reads(&long), Request::Refused(TOO_LARGE));
        assert_eq!(reads(&long[..HEAD_MAX]), Request::Refused(TOO_LARGE));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_has_been_read_stays_so_whatever_follows(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..300), cut in 0_usize..300, plausible in any::<bool>(),
        ) {
            if plausible {
                bytes.splice(0..0, *b"GET /metrics HTTP/1.1\r\n");
                bytes.extend(b"\r\n\r\n");
            }
            let first = read(&bytes[..cut.min(bytes.len())]);
            prop_assert!(first == Request::Unfinished || first == read(&bytes));
        }
    }
}
