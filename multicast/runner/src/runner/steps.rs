//! What happened to each block of one object at each member: as lines of JSON, or drawn after the fifth figure of the paper: a row a
//! member, the root's first, and each of its steps split into wait and transfer.

use std::{
    fmt::Write as _,
    fs,
    path::Path,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use hg_job::Job;
use hg_multicast::{Group, What};
use serde::{Deserialize, Serialize};

use crate::{Error, arguments::Arguments};

/// Something that happened to a block.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Happened {
    /// By the member's clock, which on one machine all members have.
    at_us: u64,
    member: u32,
    what: String,
    object: u64,
    block: u64,
    /// The other member.
    peer: u32,
}

/// A block that came.
#[derive(Debug, Clone, PartialEq)]
struct Came {
    member: u32,
    peer: u32,
    block: u64,
    begun_us: u64,
    arrived_us: u64,
}

/// A step of a member: it waits for a block, and then it comes; the root waits until it may give one, and gives it.
#[derive(Debug, Clone, PartialEq)]
struct Bar {
    row: u32,
    /// The member at the other end.
    peer: u32,
    block: u64,
    waited_us: u64,
    begun_us: u64,
    arrived_us: u64,
}

/// Writes what has happened since the trace was last taken, by rank 0. Collective.
///
/// # Errors
/// Of the job, or a file cannot be written.
pub(crate) fn write(job: &Job, group: &Group, arguments: &Arguments) -> Result<(), Error> {
    let (now, clock) = (Instant::now(), SystemTime::now());
    let clock = clock.duration_since(UNIX_EPOCH).unwrap_or_default();
    let happened = |event: hg_multicast::TraceEvent| Happened {
        at_us: micros(clock.saturating_sub(now.saturating_duration_since(event.at))),
        member: job.rank(),
        what: name(event.what).to_owned(),
        object: event.object,
        block: event.block,
        peer: event.peer,
    };
    let own: Vec<_> = group.take_trace().into_iter().map(happened).collect();
    let mut all = gathered(job, &own)?;
    if job.rank() != 0 {
        return Ok(());
    }
    all.sort_by_key(|it| it.at_us);
    let first = all.first().map_or(0, |it| it.at_us);
    all.iter_mut().for_each(|it| it.at_us -= first);
    if let Some(file) = &arguments.trace {
        save("trace", file, &lines(&all)?)?;
    }
    if let Some(file) = &arguments.plot {
        save("plot", file, &drawn(&bars(&came(&all)), job.size()))?;
    }
    Ok(())
}

/// Those of all ranks, at rank 0, as many as there are. Collective.
fn gathered(job: &Job, own: &[Happened]) -> Result<Vec<Happened>, Error> {
    let (mut all, mut parts) = (Vec::new(), own.chunks(EVENTS_AT_A_TIME));
    loop {
        let told = job.all_gather(&serde_json::to_vec(parts.next().unwrap_or_default())?)?;
        if told.iter().all(|bytes| bytes == b"[]") {
            return Ok(all);
        }
        if job.rank() == 0 {
            for bytes in &told {
                all.extend(serde_json::from_slice::<Vec<Happened>>(bytes)?);
            }
        }
    }
}

fn save(option: &'static str, file: &Path, text: &str) -> Result<(), Error> {
    fs::write(file, text).map_err(|error| Error::File(option, file.to_owned(), error))
}

fn name(what: What) -> &'static str {
    match what {
        What::Offered => "offered",
        What::Taken => "taken",
        What::Begun => "begun",
        What::Arrived => "arrived",
        _ => "other",
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn lines(all: &[Happened]) -> Result<String, Error> {
    let lines = all.iter().map(|it| serde_json::to_string(it).map(|line| line + "\n"));
    Ok(lines.collect::<Result<String, _>>()?)
}

/// From when to when each block came.
fn came(all: &[Happened]) -> Vec<Came> {
    let (mut begun, mut came): (Vec<&Happened>, _) = (Vec::new(), Vec::new());
    for it in all {
        let key = |it: &Happened| (it.member, it.object, it.block);
        match it.what.as_str() {
            "begun" => begun.push(it),
            "arrived" => {
                let at = begun.iter().rposition(|begun| key(begun) == key(it));
                let begun_us = at.map_or(it.at_us, |at| begun.swap_remove(at).at_us);
                let Happened { member, peer, block, at_us: arrived_us, .. } = *it;
                came.push(Came { member, peer, block, begun_us, arrived_us });
            }
            _ => {}
        }
    }
    came
}

/// Those of all rows, in the order of rows and time: what each receiver gets, and what the root gives, as its takers see it.
fn bars(came: &[Came]) -> Vec<Bar> {
    let mut bars: Vec<Bar> = Vec::new();
    for &Came { member, peer, block, begun_us, arrived_us } in came {
        let bar = Bar { row: member, peer, block, waited_us: 0, begun_us, arrived_us };
        if peer == 0 {
            bars.push(Bar { row: 0, peer: member, ..bar.clone() });
        }
        bars.push(bar);
    }
    bars.sort_by_key(|it| (it.row, it.begun_us, it.arrived_us));
    for of_row in bars.chunk_by_mut(|a, b| a.row == b.row) {
        let mut until_us = 0;
        for bar in of_row {
            bar.waited_us = bar.begun_us.saturating_sub(until_us);
            until_us = until_us.max(bar.arrived_us);
        }
    }
    bars
}

#[expect(clippy::cast_precision_loss, reason = "drawn")]
fn drawn(bars: &[Bar], members: u32) -> String {
    let end = bars.iter().map(|bar| bar.arrived_us).max().unwrap_or(1).max(1) as f64;
    let at = |us: u64| us as f64 / end * WIDTH;
    let height = 60 + ROW * members;
    let mut out = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 {height}" font-family="sans-serif" font-size="12">
<rect width="900" height="{height}" fill="white"/>
<text x="90" y="20">steps of one object: transfers as bars, coloured by the member at the other end, and waits as lines before them</text>
"#
    );
    for row in 0..members {
        let line = 30 + ROW * row + 14;
        let name = if row == 0 { "root".to_owned() } else { format!("member {row}") };
        // Writing to a string cannot fail.
        let _ = writeln!(out, r#"<text x="80" y="{line}" text-anchor="end">{name}</text>"#);
    }
    for Bar { row, peer, block, waited_us, begun_us, arrived_us } in bars {
        let (from, y) = (90.0 + at(*begun_us), 32 + ROW * row);
        let width = at(arrived_us.saturating_sub(*begun_us)).max(0.5);
        let colour = COLOURS[*peer as usize % COLOURS.len()];
        let way = if *row == 0 { "to" } else { "from" };
        let took_us = arrived_us.saturating_sub(*begun_us);
        if *waited_us > 0 {
            let (begin, width) = (from - at(*waited_us), at(*waited_us));
            let _ = writeln!(
                out,
                r##"<rect class="wait" x="{begin:.1}" y="{}" width="{width:.1}" height="2" fill="#909090"/>"##,
                y + ROW / 2 - 3,
            );
        }
        let _ = writeln!(
            out,
            r#"<rect class="transfer" x="{from:.1}" y="{y}" width="{width:.1}" height="{}" fill="{colour}"><title>block {block} {way} member {peer}: waited {waited_us} us, {took_us} us of transfer</title></rect>"#,
            ROW - 4,
        );
    }
    let _ = writeln!(
        out,
        r#"<text x="90" y="{0}">0</text><text x="890" y="{0}" text-anchor="end">{1:.1} ms</text></svg>"#,
        height - 8,
        end / 1e3
    );
    out
}

const ROW: u32 = 24;
const WIDTH: f64 = 800.0;
/// Of a member, on their way to rank 0: a megabyte or so.
const EVENTS_AT_A_TIME: usize = 1 << 13;
const COLOURS: [&str; 8] =
    ["#0060c0", "#c04000", "#008040", "#8000a0", "#a08000", "#008090", "#c00060", "#606060"];

#[cfg(test)]
mod tests {
    use super::*;

    fn happened(member: u32, what: &str, block: u64, at_us: u64) -> Happened {
        Happened { at_us, member, what: what.to_owned(), object: 0, block, peer: 0 }
    }

    #[test]
    fn each_step_is_a_wait_and_a_transfer_in_its_member_s_row_and_the_root_s_are_those_of_its_takers()
     {
        let passed = |what, at_us| Happened { peer: 1, ..happened(2, what, 0, at_us) };
        let all = [
            happened(1, "begun", 0, 4),
            happened(1, "arrived", 0, 10),
            passed("begun", 12),
            passed("arrived", 18),
            happened(1, "begun", 1, 20),
            happened(1, "arrived", 1, 40),
        ];
        let bars = bars(&came(&all));
        let of = |row| {
            let of_row = bars.iter().filter(move |bar| bar.row == row);
            of_row
                .map(|bar| (bar.peer, bar.block, bar.waited_us, bar.arrived_us))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(0), [(1, 0, 4, 10), (1, 1, 10, 40)]);
        assert_eq!(of(1), [(0, 0, 4, 10), (0, 1, 10, 40)]);
        assert_eq!(of(2), [(1, 0, 12, 18)]);
        let text = drawn(&bars, 3);
        assert_eq!(text.matches(r#"class="transfer""#).count(), 5);
        assert_eq!(text.matches(r#"class="wait""#).count(), 5);
        let second = r#"<rect class="transfer" x="490.0" y="56" width="400.0""#;
        assert!(text.contains(second) && text.contains(">root</text>"), "{text}");
        assert!(text.contains("block 1 to member 1: waited 10 us, 20 us of transfer"), "{text}");
        assert!(text.ends_with("</svg>\n") && !text.contains("NaN"));
        assert!(!drawn(&[], 2).contains("NaN"));
    }

    #[test]
    fn each_event_is_a_line() {
        let text = lines(&[happened(1, "begun", 7, 0), happened(1, "arrived", 7, 9)]).unwrap();
        let read: Vec<Happened> =
            text.lines().map(|it| serde_json::from_str(it).unwrap()).collect();
        assert_eq!(read, [happened(1, "begun", 7, 0), happened(1, "arrived", 7, 9)]);
    }
}
