//! Draws when each member got each block of an object, after the fifth figure of the paper: a row a member, a bar a block, and nothing
//! where a member waits.

use std::{
    fmt::Write as _,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use hg_job::Job;
use hg_multicast::{Group, What};
use serde::{Deserialize, Serialize};

use crate::Error;

/// A block that came.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Came {
    block: u64,
    peer: u32,
    begun_us: u64,
    arrived_us: u64,
}

/// Draws what has happened since the trace was last taken, by rank 0. Collective.
///
/// # Errors
/// Of the job, or the file cannot be written.
pub(crate) fn draw(job: &Job, group: &Group, file: &Path) -> Result<(), Error> {
    let events = group.take_trace();
    let first = events.iter().map(|event| event.at).min().unwrap_or_else(Instant::now);
    let mut begun: Vec<(u64, Instant)> = Vec::new();
    let mut came = Vec::new();
    for event in &events {
        match event.what {
            What::Begun => begun.push((event.block, event.at)),
            What::Arrived => {
                let at = begun.iter().rposition(|(block, _)| *block == event.block);
                let begun = at.map_or(event.at, |at| begun.swap_remove(at).1);
                let us = |at: Instant| micros(at.saturating_duration_since(first));
                let (begun_us, arrived_us) = (us(begun), us(event.at));
                came.push(Came { block: event.block, peer: event.peer, begun_us, arrived_us });
            }
            _ => {}
        }
    }
    came.truncate(BLOCKS_MAX);
    let all = job.all_gather(&serde_json::to_vec(&came)?)?;
    if job.rank() == 0 {
        let all = all.iter().map(|bytes| serde_json::from_slice(bytes));
        let text = drawn(&all.collect::<Result<Vec<_>, _>>()?);
        fs::write(file, text).map_err(|error| Error::Plot(file.to_owned(), error))?;
    }
    Ok(())
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Each member's clock begins with its first event: the root's with its first offer, a receiver's with its first block.
#[expect(clippy::cast_precision_loss, reason = "drawn")]
fn drawn(members: &[Vec<Came>]) -> String {
    let end = members.iter().flatten().map(|came| came.arrived_us).max().unwrap_or(1).max(1) as f64;
    let height = 60 + ROW * members.len();
    let mut out = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 {height}" font-family="sans-serif" font-size="12">
<rect width="900" height="{height}" fill="white"/>
<text x="90" y="20">blocks of one object at each member, coloured by whom they came from; each from its member's first on</text>
"#
    );
    for (member, came) in members.iter().enumerate().skip(1) {
        let top = 30 + ROW * member;
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            r#"<text x="80" y="{}" text-anchor="end">member {member}</text>"#,
            top - ROW + 14
        );
        for Came { block, peer, begun_us, arrived_us } in came {
            let (from, to) = (*begun_us as f64 / end * WIDTH, *arrived_us as f64 / end * WIDTH);
            let colour = COLOURS[*peer as usize % COLOURS.len()];
            let _ = writeln!(
                out,
                r#"<rect x="{:.1}" y="{}" width="{:.1}" height="{}" fill="{colour}"><title>block {block} from member {peer}, {begun_us} to {arrived_us} us</title></rect>"#,
                90.0 + from,
                top - ROW + 2,
                (to - from).max(0.5),
                ROW - 4,
            );
        }
    }
    let _ = writeln!(
        out,
        r#"<text x="90" y="{0}">0</text><text x="890" y="{0}" text-anchor="end">{1:.1} ms</text></svg>"#,
        height - 8,
        end / 1e3
    );
    out
}

const ROW: usize = 24;
const WIDTH: f64 = 800.0;
/// Of a member: more would not be seen.
const BLOCKS_MAX: usize = 4096;
const COLOURS: [&str; 8] =
    ["#0060c0", "#c04000", "#008040", "#8000a0", "#a08000", "#008090", "#c00060", "#606060"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_is_a_bar_in_its_member_s_row() {
        let came = |block, begun_us, arrived_us| Came { block, peer: 0, begun_us, arrived_us };
        let text = drawn(&[vec![], vec![came(0, 0, 10), came(1, 20, 40)], vec![came(0, 5, 5)]]);
        assert_eq!(text.matches("<title>").count(), 3);
        assert!(text.contains(r#"<rect x="490.0" y="32" width="400.0""#), "{text}");
        assert!(text.ends_with("</svg>\n") && !text.contains("NaN"));
        assert!(!drawn(&[vec![], vec![]]).contains("NaN"));
    }
}
