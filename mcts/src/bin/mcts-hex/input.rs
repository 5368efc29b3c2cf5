//! What is typed, or sent by another program.

use std::io::{BufRead, Read};

/// A line is cut off behind so many bytes.
const LINE_MAX: u64 = 64 << 10;

/// The next line, without control characters but tabulators; none at the end. What is no UTF-8 in it is replaced.
pub(crate) fn line(input: &mut impl BufRead) -> Result<Option<String>, String> {
    let mut bytes = Vec::new();
    let read = input.by_ref().take(LINE_MAX).read_until(b'\n', &mut bytes);
    let skipped = read.and_then(|_| {
        let is_cut = bytes.last().is_some_and(|last| *last != b'\n');
        if is_cut { input.skip_until(b'\n') } else { Ok(0) }
    });
    skipped.map_err(|error| format!("standard input cannot be read: {error}"))?;
    let text = String::from_utf8_lossy(&bytes);
    let is_kept = |it: &char| *it == '\t' || !it.is_control();
    Ok((!bytes.is_empty()).then(|| text.chars().filter(is_kept).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_text_without_control_characters_and_bounded() {
        let long = "x".repeat(100_000);
        let typed = format!("a\tb\r\n\u{1}c\n\n{long}\nd");
        let mut input = [&b"\xff\0e\n"[..], typed.as_bytes()].concat();
        let mut input = std::io::Cursor::new(&mut input);
        let lines: Vec<String> =
            std::iter::from_fn(|| line(&mut input).expect("a slice is read")).collect();
        assert_eq!([&lines[..4], &lines[5..]].concat(), ["\u{fffd}e", "a\tb", "c", "", "d"]);
        assert_eq!(lines[4].len(), 64 << 10);
    }
}
