//! `hydrargyrum info`: which offers were asked for, and how it ends.

use std::{process::ExitCode, time::Duration};

use clap::Args;
use hg::{
    Offer,
    visor::{NAME, Question, ask},
};
use serde_json::Value;

use crate::{
    cli::{Wrong, print},
    json, table,
};

/// Arguments of `hydrargyrum info`.
#[derive(Debug, Args)]
#[command(after_help = AFTER)]
pub(crate) struct Info {
    /// Only this scheme (ofi+tcp), plugin (ofi) or beginning of URLs; in full
    url: Option<String>,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

const AFTER: &str = "\
Each URL that is listed as available was opened once, as a listening engine is.
The first of a scheme is what the scheme alone (`ofi+tcp://`) opens.

Keys of --json, one object for each offer, in a stable order:
  plugin    the transport: sm, tcp, ofi, route, visor
  url       what opens it
  settings  settings to be given besides (Builder::setting): names and values
  provider  libfabric's provider with its layers, or null
  domain    interface or card, or null
  address   the address that peers would connect to, or null
  state     `available` or `missing`
  missing   what is missing and what to install or do, or null
  caps      null if missing; else max_message and max_segments (numbers),
            one_sided and views (true, false), sleep (descriptor, private,
            steps, poll)
  facts     whatever else is known: names and texts, as in the table

Exit status: 0 if something of what was asked for is available, 1 if nothing is,
2 if the command line is wrong. HG_LIBFABRIC names another libfabric's file,
HG_VISOR another daemon.";

/// Time until a daemon that does not answer is given up.
const PATIENCE: Duration = Duration::from_secs(5);

impl Info {
    /// Prints what was asked for.
    ///
    /// # Errors
    /// When it names nothing that could be offered.
    pub(crate) fn run(&self) -> Result<ExitCode, Wrong> {
        let all: Vec<Offer> = hg::offers().into_iter().map(with_daemon).collect();
        let offers = match &self.url {
            None => all,
            Some(asked) => {
                let fits = |offer: &&Offer| fits(offer, asked);
                let found: Vec<Offer> = all.iter().filter(fits).cloned().collect();
                if found.is_empty() {
                    return Err(Wrong::asked(nothing(asked, &all)));
                }
                found
            }
        };
        let text = if self.json {
            json::lines(&offers)
        } else {
            table::table(&offers, self.url.is_some())
        };
        print(&text)?;
        let any = offers.iter().any(Offer::is_available);
        Ok(if any { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// What the daemon says of itself, where the offer goes through it: its address in the network, and its counts and limits as facts.
fn with_daemon(mut offer: Offer) -> Offer {
    if offer.plugin != "visor" || !offer.is_available() {
        return offer;
    }
    let name = std::env::var("HG_VISOR").unwrap_or_else(|_| NAME.to_owned());
    let answer = ask(&name, Question::Status, PATIENCE).map(|it| it.text).unwrap_or_default();
    let status: Value = serde_json::from_str(&answer).unwrap_or_default();
    offer.address = status["address"].as_str().map(str::to_owned);
    for (name, value) in status.as_object().into_iter().flatten().filter(|(_, it)| !it.is_string())
    {
        offer.facts.insert(name.clone(), value.to_string());
    }
    offer.facts.insert("daemon".to_owned(), name);
    offer
}

/// Whether an offer is of the plugin or the scheme, or its URL begins so.
fn fits(offer: &Offer, asked: &str) -> bool {
    if asked.contains("://") {
        return offer.url.as_str().starts_with(asked);
    }
    offer.plugin == asked || offer.url.scheme() == asked
}

/// Why there is nothing: an address that is not this machine's, or a scheme of nobody's.
fn nothing(asked: &str, all: &[Offer]) -> String {
    let shown: String = asked.chars().take(64).flat_map(char::escape_debug).collect();
    let scheme = asked.split("://").next().unwrap_or_default();
    if all.iter().any(|offer| offer.url.scheme() == scheme) {
        return format!(
            "nothing on this machine is offered as `{shown}`; `hydrargyrum info {scheme}` lists what is"
        );
    }
    let mut plugins: Vec<&str> = all.iter().map(|offer| offer.plugin.as_str()).collect();
    plugins.dedup();
    format!(
        "`{shown}` is neither a scheme nor a plugin of this build, which has the plugins {}; `hydrargyrum info` lists \
         their schemes",
        plugins.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use hg::Address;

    use super::*;

    fn offer(plugin: &str, url: &str) -> Offer {
        Offer::new(plugin, Address::new(url).unwrap())
    }

    #[test]
    fn a_plugin_a_scheme_and_the_beginning_of_a_url_choose() {
        let tcp = offer("ofi", "ofi+tcp://192.0.2.2");
        for asked in ["ofi", "ofi+tcp", "ofi+tcp://", "ofi+tcp://192.0.2.2", "ofi+tcp://192.0."] {
            assert!(fits(&tcp, asked), "{asked}");
        }
        for asked in
            ["", "tcp", "ofi+", "ofi+shm", "tcp://", "ofi+tcp://10.", "ofi+tcp://192.0.2.23"]
        {
            assert!(!fits(&tcp, asked), "{asked}");
        }
    }

    #[test]
    fn what_names_nothing_is_told_what_there_is() {
        let all = [offer("sm", "sm://"), offer("tcp", "tcp://"), offer("tcp", "tcp://[::1]")];
        let unknown = nothing("ofi+quic", &all);
        assert!(unknown.contains("ofi+quic") && unknown.contains("plugins sm, tcp;"), "{unknown}");
        let elsewhere = nothing("tcp://10.0.0.1", &all);
        assert!(elsewhere.contains("hydrargyrum info tcp"), "{elsewhere}");
    }
}
