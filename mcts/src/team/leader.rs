//! Who gives orders, for all searches of a team: one at a time, on whichever thread asks for it.
//!
//! ```text
//!  Free --take--> Taken by a thread --its Turn is dropped--> Free
//!    |                    |
//!    +--- the team ends --+--> Ended
//! ```
//! While it is taken, other threads that want it wait. The same thread cannot, which comes here from the application's function that a phase
//! tells of its progress: what it asks for is refused, but for the end of a search or of the team, which the turn sees to when it ends.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, ThreadId},
};

use super::{
    member::{Member, PANICKED},
    post::{Answer, Begin, Order},
};
use crate::{
    Budget, Gone, Portable, Settings,
    crew::{Crew, Tell},
    stats::{Audit, Part, Sum, Sums},
    worker::Root,
};

/// The thread of a team that gives orders.
#[derive(Debug)]
pub(super) struct Leader<G> {
    state: Mutex<State<G>>,
    /// It is taken no more.
    changed: Condvar,
    /// Threads of all processes.
    all: u16,
}

#[derive(Debug)]
struct State<G> {
    standing: Standing<G>,
    searches: u32,
    phase: u32,
    /// While it is taken: searches that are over, and whether the team is let go.
    closed: Vec<u32>,
    is_let_go: bool,
}

/// Its own part as one that searches is with it, with a thread that gives orders, or nowhere any more.
#[derive(Debug)]
enum Standing<G> {
    Free(Box<Member<G>>),
    Taken(ThreadId),
    Ended(Gone),
}

impl<G> Leader<G> {
    pub(super) fn new(member: Member<G>) -> Self {
        let (all, standing) = (member.post.all(), Standing::Free(Box::new(member)));
        let (closed, is_let_go) = (Vec::new(), false);
        let state = State { standing, searches: 0, phase: 0, closed, is_let_go };
        Self { state: Mutex::new(state), changed: Condvar::new(), all }
    }

    /// Of all processes together.
    pub(super) fn all(&self) -> u16 {
        self.all
    }

    /// The number of another search.
    pub(super) fn next_search(&self) -> u32 {
        let mut state = self.lock();
        state.searches += 1;
        state.searches
    }

    /// A panic of a game has ended the team before it poisons this.
    fn lock(&self) -> MutexGuard<'_, State<G>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same when no other thread has it.
    fn lock_in_turn(&self) -> MutexGuard<'_, State<G>> {
        let (me, mut state) = (thread::current().id(), self.lock());
        while matches!(state.standing, Standing::Taken(by) if by != me) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    /// Takes it, to give orders.
    fn take(&self) -> Result<Turn<'_, G>, Gone> {
        let mut state = self.lock_in_turn();
        let taken = Standing::Taken(thread::current().id());
        match std::mem::replace(&mut state.standing, taken) {
            Standing::Free(member) => Ok(Turn { leader: self, member: Some(member) }),
            Standing::Taken(_) => Err(Gone { process: 0, why: "is searching".into() }),
            Standing::Ended(gone) => {
                state.standing = Standing::Ended(gone.clone());
                Err(gone)
            }
        }
    }

    /// Lets the others go. Whether they are: not in a phase of this very thread, which lets them go when it is over.
    pub(super) fn let_go(&self) -> bool {
        let mut state = self.lock_in_turn();
        state.is_let_go = true;
        if matches!(state.standing, Standing::Taken(_)) {
            return false;
        }
        state.end();
        true
    }

    /// A search is over.
    fn close(&self, search: u32) {
        let mut state = self.lock();
        match &mut state.standing {
            Standing::Free(member) => member.close(search),
            Standing::Taken(_) => state.closed.push(search),
            Standing::Ended(_) => {}
        }
    }
}

impl<G> State<G> {
    fn end(&mut self) {
        let ended = Gone { process: 0, why: "has let its team go".into() };
        let standing = std::mem::replace(&mut self.standing, Standing::Ended(ended));
        let Standing::Free(mut member) = standing else { return };
        match member.end() {
            Ok(()) => member.post.finish(),
            Err(gone) => member.post.break_off(&gone),
        }
    }
}

/// The leader, taken by this thread.
#[derive(Debug)]
struct Turn<'a, G> {
    leader: &'a Leader<G>,
    /// None: the team has ended in this turn.
    member: Option<Box<Member<G>>>,
}

impl<G> Turn<'_, G> {
    /// The number of another phase.
    fn next_phase(&self) -> u32 {
        let mut state = self.leader.lock();
        state.phase += 1;
        state.phase
    }

    /// Nothing is searched any more.
    fn fail(&mut self, gone: &Gone) {
        if let Some(member) = self.member.take() {
            member.post.break_off(gone);
            self.leader.lock().standing = Standing::Ended(gone.clone());
        }
    }

    /// Somebody has answered what it was not asked.
    fn refuse(&mut self, worker: u16, why: &str) -> Gone {
        let member = self.member.as_ref().expect("an order was answered");
        let gone = member.post.accuse(worker, why);
        self.fail(&gone);
        gone
    }
}

impl<G: Portable> Turn<'_, G> {
    /// Gives the order of this turn.
    fn give(&mut self, order: &Order, tell: Tell<'_>) -> Result<Vec<Answer>, Gone> {
        let member = self.member.as_mut().expect("one order a turn");
        match catch_unwind(AssertUnwindSafe(|| member.lead(order, tell))) {
            Ok(Ok(answers)) => Ok(answers),
            Ok(Err(gone)) => {
                self.fail(&gone);
                Err(gone)
            }
            Err(panic) => {
                let gone = member.post.own(PANICKED);
                self.fail(&gone);
                resume_unwind(panic)
            }
        }
    }
}

impl<G> Drop for Turn<'_, G> {
    fn drop(&mut self) {
        let mut state = self.leader.lock();
        if let Some(mut member) = self.member.take() {
            std::mem::take(&mut state.closed).into_iter().for_each(|it| member.close(it));
            state.standing = Standing::Free(member);
            if state.is_let_go {
                state.end();
            }
        }
        drop(state);
        self.leader.changed.notify_all();
    }
}

/// A search of a team's.
#[derive(Debug)]
pub(super) struct Away<G> {
    leader: Arc<Leader<G>>,
    search: u32,
    settings: Settings,
}

impl<G> Away<G> {
    pub(super) fn new(leader: &Arc<Leader<G>>, settings: Settings) -> Self {
        Self { leader: Arc::clone(leader), search: leader.next_search(), settings }
    }
}

impl<G: Portable> Crew<G> for Away<G> {
    fn size(&self) -> u16 {
        self.leader.all()
    }

    fn run(&mut self, root: &Root<G>, budget: Budget, tell: Tell<'_>) -> Result<Vec<Part>, Gone> {
        let mut turn = self.leader.take()?;
        let begin = Begin {
            search: self.search,
            phase: turn.next_phase(),
            settings: self.settings.clone(),
            position: root.position.to_bytes(),
            key: root.key,
            owner: root.owner,
            budget,
            tells: tell.is_some(),
        };
        let mut parts = Vec::new();
        for (from, answer) in (0..).zip(turn.give(&Order::Begin(begin), tell)?) {
            match answer {
                Answer::Part(part) if is_sane(&part, &root.position) => parts.push(part),
                _ => return Err(turn.refuse(from, "has told what it cannot have found")),
            }
        }
        Ok(parts)
    }

    fn look(&self, key: u64) -> Result<Vec<(u16, Sums)>, Gone> {
        let answers = self.leader.take()?.give(&Order::Look { search: self.search, key }, None)?;
        let found = (0..).zip(answers).filter_map(|(from, answer)| match answer {
            Answer::Look(Some(sums)) if are_sane(&sums) => Some((from, sums)),
            _ => None,
        });
        Ok(found.collect())
    }

    fn audit(&self) -> Result<Audit, Gone> {
        let mut audit = Audit::default();
        for answer in self.leader.take()?.give(&Order::Audit { search: self.search }, None)? {
            if let Answer::Audit(other) = answer {
                audit.add(other);
            }
        }
        Ok(audit)
    }
}

impl<G> Drop for Away<G> {
    fn drop(&mut self) {
        self.leader.close(self.search);
    }
}

/// Whether numbers of another process can be added up, and its moves made.
fn is_sane(part: &Part, position: &impl Portable) -> bool {
    let root = part.root.as_ref().is_none_or(|root| {
        are_sane(root) && root.children.iter().all(|child| position.is_legal(child.mv))
    });
    root && part.counted <= COUNT_MAX && part.stats.most() <= COUNT_MAX
}

fn are_sane(sums: &Sums) -> bool {
    let is_sane =
        |child: &Sum| child.visits <= COUNT_MAX && child.score.unsigned_abs() <= COUNT_MAX;
    sums.visits <= COUNT_MAX && sums.children.iter().all(is_sane)
}

/// More than any worker counts, and so little that the counts of all of them can be added up.
const COUNT_MAX: u64 = 1 << 47;
