//! What happened to each block of one object at each member: as lines of JSON, or drawn after the fifth figure of the paper, a row a
//! member, a bar a block, and nothing where a member waits.

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
    let mut own: Vec<_> = group.take_trace().into_iter().map(happened).collect();
    own.truncate(EVENTS_MAX);
    let all = job.all_gather(&serde_json::to_vec(&own)?)?;
    if job.rank() != 0 {
        return Ok(());
    }
    let all = all.iter().map(|bytes| serde_json::from_slice::<Vec<Happened>>(bytes));
    let mut all = all.collect::<Result<Vec<_>, _>>()?.concat();
    all.sort_by_key(|it| it.at_us);
    let first = all.first().map_or(0, |it| it.at_us);
    all.iter_mut().for_each(|it| it.at_us -= first);
    if let Some(file) = &arguments.trace {
        save("trace", file, &lines(&all)?)?;
    }
    if let Some(file) = &arguments.plot {
        save("plot", file, &drawn(&bars(&all), job.size()))?;
    }
    Ok(())
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
fn bars(all: &[Happened]) -> Vec<Came> {
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

#[expect(clippy::cast_precision_loss, reason = "drawn")]
fn drawn(bars: &[Came], members: u32) -> String {
    let end = bars.iter().map(|came| came.arrived_us).max().unwrap_or(1).max(1) as f64;
    let height = 60 + ROW * members;
    let mut out = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 {height}" font-family="sans-serif" font-size="12">
<rect width="900" height="{height}" fill="white"/>
<text x="90" y="20">blocks of one object at each member, coloured by whom they came from</text>
"#
    );
    for member in 1..members {
        let line = 30 + ROW * (member - 1) + 14;
        // Writing to a string cannot fail.
        let _ =
            writeln!(out, r#"<text x="80" y="{line}" text-anchor="end">member {member}</text>"#);
    }
    for Came { member, peer, block, begun_us, arrived_us } in bars {
        let (from, to) = (*begun_us as f64 / end * WIDTH, *arrived_us as f64 / end * WIDTH);
        let colour = COLOURS[*peer as usize % COLOURS.len()];
        let _ = writeln!(
            out,
            r#"<rect x="{:.1}" y="{}" width="{:.1}" height="{}" fill="{colour}"><title>block {block} from member {peer}, {begun_us} to {arrived_us} us</title></rect>"#,
            90.0 + from,
            32 + ROW * member.saturating_sub(1),
            (to - from).max(0.5),
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
/// Of a member: more would not be looked at.
const EVENTS_MAX: usize = 1 << 14;
const COLOURS: [&str; 8] =
    ["#0060c0", "#c04000", "#008040", "#8000a0", "#a08000", "#008090", "#c00060", "#606060"];

#[cfg(test)]
mod tests {
    use super::*;

    fn happened(member: u32, what: &str, block: u64, at_us: u64) -> Happened {
        Happened { at_us, member, what: what.to_owned(), object: 0, block, peer: 0 }
    }

    #[test]
    fn each_block_is_a_bar_in_its_member_s_row() {
        let all = [
            happened(1, "begun", 0, 0),
            happened(2, "begun", 0, 5),
            happened(2, "arrived", 0, 5),
            happened(1, "arrived", 0, 10),
            happened(1, "begun", 1, 20),
            happened(1, "arrived", 1, 40),
        ];
        let text = drawn(&bars(&all), 3);
        assert_eq!(text.matches("<title>").count(), 3);
        assert!(text.contains(r#"<rect x="490.0" y="32" width="400.0""#), "{text}");
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
