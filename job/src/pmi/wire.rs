//! The texts of the process management interface, in both dialects. No socket.
//!
//! | | PMI-1 | PMI-2 |
//! |---|---|---|
//! | message | `cmd=put kvsname=a key=b value=c\n` | six characters of length, then `cmd=kvs-put;key=b;value=c;` |
//! | before the dialect is settled | `cmd=init pmi_version=1 pmi_subversion=1\n` | the same with version 2 |
//! | failure | `rc=` other than 0 | `rc=` other than 0 |
//!
//! What the server says is a claim: [`Fields`] gives texts, and whoever asks checks them.

/// The longest message that is taken from a server.
pub(crate) const MESSAGE_MAX: usize = 64 << 10;
/// The longest value that is put: a whole request stays below the 1,024 bytes that Slurm takes.
pub(crate) const VALUE_MAX: usize = 768;

/// A message taken apart.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Fields(Vec<(String, String)>);

impl Fields {
    /// A line of PMI-1, without its end. Words without `=` belong to the value before them.
    pub(crate) fn of_line(line: &str) -> Self {
        let mut fields: Vec<(String, String)> = Vec::new();
        for word in line.split_whitespace() {
            match (word.split_once('='), fields.last_mut()) {
                (Some((name, value)), _) => fields.push((name.to_owned(), value.to_owned())),
                (None, Some((_, value))) => {
                    value.push(' ');
                    value.push_str(word);
                }
                (None, None) => {}
            }
        }
        Self(fields)
    }

    /// The body of a PMI-2 message: `;` ends a field, `;;` is a semicolon.
    pub(crate) fn of_packet(body: &str) -> Self {
        let mut fields = Vec::new();
        let mut field = String::new();
        let mut characters = body.chars().peekable();
        while let Some(character) = characters.next() {
            if character != ';' {
                field.push(character);
            } else if characters.peek() == Some(&';') {
                characters.next();
                field.push(';');
            } else if let Some((name, value)) = std::mem::take(&mut field).split_once('=') {
                fields.push((name.to_owned(), value.to_owned()));
            }
        }
        if let Some((name, value)) = field.split_once('=') {
            fields.push((name.to_owned(), value.to_owned()));
        }
        Self(fields)
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn number(&self, name: &str) -> Option<u32> {
        self.text(name)?.parse().ok()
    }

    /// Does it report success? A message without `rc` does.
    pub(crate) fn is_good(&self) -> bool {
        self.text("rc").is_none_or(|rc| rc == "0")
    }
}

/// A line of PMI-1.
pub(crate) fn line(command: &str, fields: &[(&str, &str)]) -> String {
    let mut text = format!("cmd={command}");
    for (name, value) in fields {
        text.push_str(&format!(" {name}={value}"));
    }
    text.push('\n');
    text
}

/// A message of PMI-2.
pub(crate) fn packet(command: &str, fields: &[(&str, &str)]) -> String {
    let mut text = format!("cmd={command};");
    for (name, value) in fields {
        text.push_str(&format!("{name}={};", value.replace(';', ";;")));
    }
    format!("{:6}{text}", text.len())
}

/// The length of a PMI-2 message from its first six characters.
pub(crate) fn packet_length(head: &[u8]) -> Option<usize> {
    let length = std::str::from_utf8(head).ok()?.trim().parse().ok()?;
    (length <= MESSAGE_MAX).then_some(length)
}

/// The node of each rank from `PMI_process_mapping`: `(vector,(first node, nodes, ranks per node),...)`,
/// begun again when it is too short.
pub(crate) fn mapping(text: &str, size: u32) -> Option<Vec<u32>> {
    let inner = text.trim().strip_prefix("(vector,")?.strip_suffix(')')?;
    let mut blocks = Vec::new();
    for block in inner.split("),") {
        let block = block.trim().trim_start_matches('(').trim_end_matches(')');
        let numbers: Vec<u32> =
            block.split(',').map(|word| word.trim().parse()).collect::<Result<_, _>>().ok()?;
        let &[first, nodes, each] = &numbers[..] else { return None };
        // Blocks of no ranks would be run through for nothing.
        if nodes > 0 && each > 0 {
            blocks.push((first, nodes, each));
        }
    }
    let ranks = |&(first, nodes, each): &(u32, u32, u32)| {
        let nodes = first..first.saturating_add(nodes);
        nodes.flat_map(move |node| (0..each).map(move |_| node))
    };
    if blocks.is_empty() {
        return None;
    }
    Some(blocks.iter().cycle().flat_map(ranks).take(size as usize).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_are_taken_apart() {
        let fields = Fields::of_line("cmd=get_result rc=0 msg=no such key value=a=b");
        assert_eq!(fields.text("cmd"), Some("get_result"));
        assert_eq!(fields.text("msg"), Some("no such key"));
        assert_eq!(fields.text("value"), Some("a=b"));
        assert!(fields.is_good() && !Fields::of_line("rc=-1").is_good());
        assert_eq!(Fields::of_line("garbage"), Fields::default());
    }

    #[test]
    fn lines_and_packets_are_put_together() {
        assert_eq!(line("put", &[("key", "a"), ("value", "b")]), "cmd=put key=a value=b\n");
        assert_eq!(packet("kvs-put", &[("key", "a;b")]), "    21cmd=kvs-put;key=a;;b;");
        assert_eq!(packet_length(b"    21"), Some(21));
        for wrong in [&b"GET / "[..], b"-00001", b"999999", b"\xff\xff\xff\xff\xff\xff"] {
            assert_eq!(packet_length(wrong), None);
        }
    }

    #[test]
    fn mappings_give_the_node_of_each_rank() {
        assert_eq!(mapping("(vector,(0,1,1))", 3), Some(vec![0, 0, 0]));
        assert_eq!(mapping("(vector,(0,2,2))", 4), Some(vec![0, 0, 1, 1]));
        assert_eq!(mapping("(vector,(0,2,1))", 4), Some(vec![0, 1, 0, 1]));
        assert_eq!(mapping("(vector,(0,1,3),(1,1,1))", 4), Some(vec![0, 0, 0, 1]));
        assert_eq!(mapping("(vector,(0,4294967295,0),(2,1,1))", 3), Some(vec![2, 2, 2]));
        for wrong in
            ["", "(vector)", "(vector,)", "(vector,(0,1))", "(vector,(0,0,1))", "(vector,(a,b,c))"]
        {
            assert_eq!(mapping(wrong, 4), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_taken_apart(text in "\\PC{0,60}") {
            let _ = (Fields::of_line(&text), Fields::of_packet(&text), mapping(&text, 5));
        }

        #[test]
        fn a_packet_s_fields_come_back(key in "[a-z]{1,8}", value in "[a-z;= ]{0,20}") {
            let text = packet("x", &[(&key, &value)]);
            prop_assert_eq!(packet_length(&text.as_bytes()[..6]), Some(text.len() - 6));
            if !value.starts_with(';') && key != "cmd" {
                let fields = Fields::of_packet(&text[6..]);
                prop_assert_eq!(fields.text(&key), Some(value.as_str()));
            }
        }
    }
}
