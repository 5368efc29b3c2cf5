//! Offers for people: a table of what is available, then what is missing, within 80 columns.
//!
//! A cell that is wider than its column pushes the rest of its row to the next line, so that long IPv6
//! addresses can be copied whole.

use std::{borrow::Cow, collections::BTreeMap};

use hg::{Offer, na::Sleep};

use crate::json::missing;

/// Columns of a terminal.
const WIDTH: usize = 80;
/// Between two columns.
const GAP: usize = 2;
const HEADINGS: [&str; 4] = ["PLUGIN", "URL", "DOMAIN", "PROVIDER"];
/// Widest cells; longer ones break their row.
const WIDEST: [usize; 4] = [8, 36, 14, 16];
const _: () = assert!(WIDEST[0] + WIDEST[1] + WIDEST[2] + WIDEST[3] + 3 * GAP <= WIDTH);

/// All that there is to say; `every_fact`: also what is true of one URL only.
pub(crate) fn table(offers: &[Offer], every_fact: bool) -> String {
    let mut text = String::new();
    let rows: Vec<[String; 4]> = offers.iter().filter(|it| it.is_available()).map(row).collect();
    if rows.is_empty() {
        text += "Nothing of this is available.\n";
    } else {
        text += &rows_text(&rows);
    }
    text += &facts(offers, every_fact);
    text += &said_of("Polled", offers, polled);
    text += &said_of("Missing", offers, |offer| missing(offer).map(Cow::Borrowed));
    text
}

fn row(offer: &Offer) -> [String; 4] {
    let settings: String =
        offer.settings.iter().map(|(name, value)| format!(" {name}={value}")).collect();
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    [
        offer.plugin.clone(),
        format!("{}{settings}", offer.url),
        or_dash(&offer.domain),
        or_dash(&offer.provider),
    ]
}

fn rows_text(rows: &[[String; 4]]) -> String {
    let headings = HEADINGS.map(str::to_owned);
    let width = |column: usize| {
        let cells = rows.iter().chain([&headings]).map(|row| row[column].len());
        cells.filter(|len| *len <= WIDEST[column]).max().unwrap_or(0)
    };
    let widths = [0, 1, 2, 3].map(width);
    let mut text = String::new();
    for row in [&headings].into_iter().chain(rows) {
        let mut line = String::new();
        let mut start = 0;
        for (cell, width) in row.iter().zip(widths) {
            if line.len() > start {
                text += line.trim_end();
                text.push('\n');
                line.clear();
            }
            line += &" ".repeat(start - line.len());
            line += cell;
            start += width + GAP;
            if cell.len() <= width {
                line += &" ".repeat(start - line.len());
            }
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// By plugin, what is true of all that it offers; then by URL what is not.
fn facts(offers: &[Offer], every_fact: bool) -> String {
    let mut text = String::new();
    let mut rest = offers;
    while let Some(first) = rest.first() {
        let count = rest.iter().take_while(|it| it.plugin == first.plugin).count();
        let (ours, others) = rest.split_at(count);
        rest = others;
        let is_common = |name: &str, value: &str| {
            ours.iter().all(|it| it.facts.get(name).is_some_and(|it| it == value))
        };
        let split = |offer: &Offer, common: bool| -> BTreeMap<String, String> {
            let facts = offer.facts.clone().into_iter();
            facts.filter(|(name, value)| is_common(name, value) == common).collect()
        };
        text += &section(&first.plugin, &split(first, true));
        if every_fact {
            for offer in ours {
                let mut own = split(offer, false);
                own.extend(caps(offer));
                own.extend(offer.address.clone().map(|address| ("address".to_owned(), address)));
                text += &section(&row(offer)[1], &own);
            }
        }
    }
    text
}

fn caps(offer: &Offer) -> BTreeMap<String, String> {
    let Some(caps) = &offer.caps else { return BTreeMap::new() };
    let message = format!("{} bytes; longer ones travel as bulk data", caps.max_unexpected);
    BTreeMap::from([("one-message".to_owned(), message)])
}

fn section(title: &str, facts: &BTreeMap<String, String>) -> String {
    if facts.is_empty() {
        return String::new();
    }
    let width = facts.keys().map(String::len).max().unwrap_or(0);
    let mut text = format!("\n{title}\n");
    for (name, value) in facts {
        let name = format!("  {name:width$}  ");
        text += &wrapped(&name, value);
    }
    text
}

/// How an idle engine waits where there is nothing that it could sleep on.
fn polled(offer: &Offer) -> Option<Cow<'_, str>> {
    let how = match offer.caps.as_ref()?.sleep {
        Sleep::Descriptor | Sleep::Private => return None,
        Sleep::Steps(longest) => format!(
            "nothing to sleep on: an idle engine looks in steps that grow to {} ms, and hears a first message so late",
            longest.as_millis()
        ),
        _ => "nothing to sleep on: an idle engine looks all the time".to_owned(),
    };
    Some(how.into())
}

/// Each thing that is to be said of some offers once, with their URLs.
fn said_of<'a>(
    title: &str,
    offers: &'a [Offer],
    say: impl Fn(&'a Offer) -> Option<Cow<'a, str>>,
) -> String {
    let mut said: Vec<(Cow<'_, str>, Vec<String>)> = Vec::new();
    for offer in offers {
        let Some(what) = say(offer) else { continue };
        let url = row(offer)[1].clone();
        match said.iter_mut().find(|(other, _)| *other == what) {
            Some((_, urls)) => urls.push(url),
            None => said.push((what, vec![url])),
        }
    }
    if said.is_empty() {
        return String::new();
    }
    let mut text = format!("\n{title}\n");
    for (what, urls) in said {
        text += &wrapped("  ", &urls.join(" "));
        text += &wrapped("      ", &what);
    }
    text
}

/// Text in lines of 80 columns, the first behind `start`, the others under it.
fn wrapped(start: &str, text: &str) -> String {
    let mut done = String::new();
    let mut line = start.to_owned();
    let mut is_fresh = true;
    for word in text.split_whitespace() {
        if !is_fresh && line.chars().count() + 1 + word.chars().count() > WIDTH {
            done += &line;
            done.push('\n');
            line = " ".repeat(start.len());
            is_fresh = true;
        }
        if !is_fresh {
            line.push(' ');
        }
        line += word;
        is_fresh = false;
    }
    done + line.trim_end() + "\n"
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hg::{Address, na::Caps};

    use super::*;

    fn offer(plugin: &str, url: &str) -> Offer {
        Offer::new(plugin, Address::new(url).unwrap())
    }

    #[test]
    fn columns_stand_under_each_other_and_long_cells_break_their_row() {
        let long = "ofi+verbs://[2001:db8:1111:2222:3333:4444:5555:6666]";
        let text = table(
            &[
                offer("sm", "sm://"),
                offer("ofi", "ofi+tcp://192.0.2.2").on("eth0").by("tcp;ofi_rxm"),
                offer("ofi", long).on("mlx5_0").by("verbs;ofi_rxm"),
            ],
            false,
        );
        let expected = "\
PLUGIN  URL                  DOMAIN  PROVIDER
sm      sm://                -       -
ofi     ofi+tcp://192.0.2.2  eth0    tcp;ofi_rxm
ofi     ofi+verbs://[2001:db8:1111:2222:3333:4444:5555:6666]
                             mlx5_0  verbs;ofi_rxm
";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_reason_stands_once_for_all_that_it_keeps_away() {
        let why = "there is no libfabric here: install it";
        let missing = |url| offer("ofi", url).missing(why);
        let text = table(&[missing("ofi+tcp://"), missing("ofi+shm://")], false);
        assert_eq!(
            text,
            format!(
                "Nothing of this is available.\n\nMissing\n  ofi+tcp:// ofi+shm://\n      {why}\n"
            )
        );
    }

    #[test]
    fn where_an_engine_can_only_look_the_table_says_how_late_it_hears() {
        let sleeping = |url, sleep| {
            let mut offer = offer("ofi", url);
            let mut caps = Caps::minimal();
            caps.sleep = sleep;
            offer.caps = Some(caps);
            offer
        };
        let steps = Sleep::Steps(Duration::from_millis(4));
        let offers = [
            sleeping("ofi+tcp://", Sleep::Descriptor),
            sleeping("ofi+shm://", steps),
            sleeping("ofi+udp://", steps),
            sleeping("ofi+net://", Sleep::Poll),
        ];
        let text = table(&offers, false);
        let (_, polled) = text.split_once("\nPolled\n").unwrap();
        assert!(polled.starts_with("  ofi+shm:// ofi+udp://\n      nothing to sleep on"), "{text}");
        assert!(polled.contains("4 ms") && polled.contains("  ofi+net://\n"), "{text}");
        assert!(!polled.contains("ofi+tcp"), "{text}");
        assert!(!table(&offers[..1], true).contains("Polled"));
    }

    #[test]
    fn facts_of_one_url_are_shown_when_asked_for() {
        let offers = [
            offer("ofi", "ofi+tcp://").fact("library", "libfabric 1.17").fact("fabric", "a"),
            offer("ofi", "ofi+shm://").fact("library", "libfabric 1.17").fact("fabric", "b"),
        ];
        let short = table(&offers, false);
        assert!(
            short.contains("\nofi\n  library  libfabric 1.17\n") && !short.contains("fabric  a")
        );
        let whole = table(&offers, true);
        assert!(whole.contains("\nofi+shm://\n  fabric  b\n"), "{whole}");
    }

    #[test]
    fn no_line_is_longer_than_the_terminal() {
        let long = "word ".repeat(60);
        let url = format!("ofi+verbs://[{}]", "2001:".repeat(8));
        let offer = offer("ofi", &url)
            .on("a-card-with-a-long-name")
            .by("verbs;ofi_rxm")
            .fact("fact", &long);
        for text in [table(std::slice::from_ref(&offer), true), table(&[offer.missing(long)], true)]
        {
            assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
        }
    }
}
