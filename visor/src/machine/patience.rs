//! Silence that is not waited for: of strangers, and of ends of connections that hold up a drain.

use std::time::{Duration, Instant};

use super::{
    Switch,
    party::{PartyKey, Role, Said},
};

/// So long a process may be connected without saying who it is.
const GREETING: Duration = Duration::from_secs(30);
/// Strangers beyond which those that have been silent longest make room, once they have had a look's time.
pub(crate) const STRANGERS: u32 = 256;
/// So long a daemon that is drained waits for an answer to `Close`.
const ANSWER: Duration = Duration::from_secs(60);

impl Switch {
    /// Strangers who have been silent for too long, since an earlier look at least, the oldest first. Who is to be told something is waited
    /// for.
    pub(super) fn silent_strangers(&mut self, now: Instant) -> Vec<PartyKey> {
        let drainers = &self.drainers;
        let mut strangers: Vec<(PartyKey, Instant)> = Vec::new();
        for (key, party) in &mut self.parties {
            let is_awaited = party.is_listed || drainers.contains(key);
            if matches!(party.role, Role::Stranger) && !is_awaited {
                strangers.push((*key, *party.idle_since.get_or_insert(now)));
            }
        }
        strangers.sort_unstable();
        let too_many = strangers.len().saturating_sub(STRANGERS as usize);
        let is_over = |at: usize, since: Instant| {
            now > since && (at < too_many || now.saturating_duration_since(since) >= GREETING)
        };
        let over = strangers.iter().enumerate().filter(|(at, (_, since))| is_over(*at, *since));
        over.map(|(_, (key, _))| *key).collect()
    }

    /// While it is drained: applications that have not answered a `Close` for too long. Ends of other daemons are theirs to wait for, and
    /// not waited for here any more.
    pub(super) fn silent_ends(&mut self, now: Instant) -> Vec<PartyKey> {
        let mut over = Vec::new();
        for connection in self.connections.values_mut().filter(|_| self.is_draining) {
            for end in &mut connection.ends {
                let Some(party) = self.parties.get(&end.party) else { continue };
                let is_told =
                    end.said == Said::Sent || end.said == Said::Queued && party.is_blocked;
                if end.has_closed || !is_told {
                    end.told_since = None;
                    continue;
                }
                let since = *end.told_since.get_or_insert(now);
                match now.saturating_duration_since(since) >= ANSWER {
                    true if party.is_node() => connection.is_given_up = true,
                    true => over.push(end.party),
                    false => {}
                }
            }
        }
        over.sort_unstable();
        over.dedup();
        over
    }
}
