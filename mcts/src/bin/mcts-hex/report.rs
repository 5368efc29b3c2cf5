//! What a search has found, as text and as JSON.

use std::fmt::Write as _;

use hg_mcts::{Analysis, Candidate, Outcome, Player, Progress, Search, WorkerStats, hex::Hex};
use serde_json::{Value, json};

use crate::{arguments::SearchArguments, board};

/// Moves in the text; the JSON has all.
const MOVES_SHOWN: usize = 10;
/// Moves of the line.
const LINE_MAX: usize = 12;

/// A search and what it has found.
pub(crate) struct Report<'a> {
    search: &'a Search<Hex>,
    found: &'a Analysis,
    arguments: &'a SearchArguments,
}

/// Million simulations a second.
#[expect(clippy::cast_precision_loss, reason = "shown")]
pub(crate) fn rate(progress: &Progress) -> f64 {
    progress.simulations as f64 / progress.elapsed.as_secs_f64().max(1e-9) / 1e6
}

#[expect(clippy::cast_precision_loss, reason = "shown")]
fn per(sum: u64, count: u64) -> f64 {
    sum as f64 / count.max(1) as f64
}

impl<'a> Report<'a> {
    pub(crate) fn new(
        search: &'a Search<Hex>,
        found: &'a Analysis,
        arguments: &'a SearchArguments,
    ) -> Self {
        Self { search, found, arguments }
    }

    /// The best move, on a line.
    pub(crate) fn best(&self) -> String {
        match self.found.best {
            Some(best) => format!("{}\n", self.search.position().format_move(best)),
            None => "none\n".to_owned(),
        }
    }

    pub(crate) fn text(&self) -> String {
        let (position, found) = (self.search.position(), self.found);
        let mut out = board::draw(position, None);
        if let Some(Outcome::Won(winner)) = found.proof {
            let _ = writeln!(out, "proven: {} wins", board::name(winner));
        }
        for it in found.candidates.iter().take(MOVES_SHOWN) {
            let mv = position.format_move(it.mv);
            let proof = self.proof(it).map_or(String::new(), |proof| format!("  proven {proof}"));
            let value = 100.0 * it.value;
            let _ = writeln!(out, "{mv:>5} {:>12} visits {value:>6.2} %{proof}", it.visits);
        }
        let _ = writeln!(out, "line: {}", self.line().join(" "));
        let last = &found.last;
        let _ = writeln!(
            out,
            "{} simulations in {:.2} s: {:.2} M/s; {} rollouts",
            last.simulations,
            last.elapsed.as_secs_f64(),
            rate(last),
            last.rollouts
        );
        for (number, it) in found.workers.iter().enumerate() {
            let share = 100.0 * per(it.simulations, self.simulated());
            let who = self.who(number);
            let _ = writeln!(
                out,
                "{who}: {share:.1} % of the simulations, depth {:.1} (at most {}), {:.2} messages and \
                 {:.0} bytes a rollout, {} nodes in {:.1} MiB, {} pruned",
                per(it.depth_sum, it.rollouts),
                it.depth_max,
                per(it.messages, it.rollouts),
                per(it.bytes, it.rollouts),
                it.nodes,
                per(it.tree_bytes as u64, 1 << 20),
                it.pruned
            );
        }
        out
    }

    pub(crate) fn json(&self) -> Result<Value, String> {
        let (position, found) = (self.search.position(), self.found);
        let moves: Vec<Value> = (found.candidates.iter())
            .map(|it| {
                json!({
                    "move": position.format_move(it.mv),
                    "visits": it.visits,
                    "value": it.value,
                    "proof": self.proof(it),
                })
            })
            .collect();
        let proof = match found.proof {
            Some(Outcome::Won(Player::First)) => Some("first"),
            Some(Outcome::Won(Player::Second)) => Some("second"),
            Some(Outcome::Drawn) | None => None,
        };
        let settings: serde_json::Map<String, Value> = self
            .arguments
            .pairs()
            .into_iter()
            .map(|(name, it)| (name.to_owned(), it.into()))
            .collect();
        let samples: Vec<Value> = (found.samples.iter())
            .map(|it| json!([it.elapsed.as_secs_f64(), it.simulations]))
            .collect();
        let audit = self.search.audit().map_err(|error| error.to_string())?;
        Ok(json!({
            "size": position.size(),
            "stones": position.stones(),
            "settings": settings,
            "best": found.best.map(|mv| position.format_move(mv)),
            "winner": proof,
            "line": self.line(),
            "moves": moves,
            "visits": found.visits,
            "rollouts": found.last.rollouts,
            "simulations": found.last.simulations,
            "seconds": found.last.elapsed.as_secs_f64(),
            "simulations_per_second": rate(&found.last) * 1e6,
            "processes": found.workers.len() / usize::from(self.search.settings().workers),
            "threads": found.workers.iter().map(|it| self.thread_json(it)).collect::<Vec<_>>(),
            "samples": samples,
            "left_over": {
                "under_way": audit.under_way,
                "waiting": audit.waiting,
                "unbalanced_nodes": audit.unbalanced,
            },
        }))
    }

    /// A thread's name, with its process's where there are several.
    fn who(&self, number: usize) -> String {
        let threads = usize::from(self.search.settings().workers);
        if self.found.workers.len() == threads {
            return format!("thread {number}");
        }
        format!("process {}, thread {}", number / threads, number % threads)
    }

    fn thread_json(&self, it: &WorkerStats) -> Value {
        json!({
            "share": per(it.simulations, self.simulated()),
            "simulations": it.simulations,
            "rollouts": it.rollouts,
            "depth": per(it.depth_sum, it.rollouts),
            "depth_max": it.depth_max,
            "messages": it.messages,
            "batches": it.batches,
            "combined": it.combined,
            "bytes": it.bytes,
            "messages_per_rollout": per(it.messages, it.rollouts),
            "bytes_per_rollout": per(it.bytes, it.rollouts),
            "nodes": it.nodes,
            "children": it.children,
            "tree_bytes": it.tree_bytes,
            "pruned": it.pruned,
            "not_expanded": it.not_expanded,
        })
    }

    fn simulated(&self) -> u64 {
        self.found.workers.iter().map(|it| it.simulations).sum()
    }

    fn line(&self) -> Vec<String> {
        let position = self.search.position();
        self.search.variation(LINE_MAX).iter().map(|mv| position.format_move(*mv)).collect()
    }

    /// What is proven about a move, for whoever makes it.
    fn proof(&self, it: &Candidate) -> Option<&'static str> {
        it.proof.map(|proof| match proof {
            Outcome::Won(winner) if winner == hg_mcts::Game::turn(self.search.position()) => "win",
            Outcome::Won(_) => "loss",
            Outcome::Drawn => "draw",
        })
    }
}
