//! What must hold of every run.
//!
//! | check | what it says |
//! |---|---|
//! | `value` | answers, arguments and moved bytes are what was sent |
//! | `outcome` | a call ends as it can have ended |
//! | `late` | a call with a deadline ends by it, or so much later as its process was kept from it |
//! | `mourns` | a call to a process that has died ends soon |
//! | `slow` | a call between two processes that nothing keeps from answering ends within a short time, whatever others do |
//! | `stuck` | a call ends, unless it asks a process that hangs |
//! | `probe` | when all has happened, every living process can call every other one, whatever hangs beside them; where its own requests fill its share of what may wait for that one, once some were taken |
//! | `twice` | a request is answered once, and served once |
//! | `left` | requests in service, calls, transfers, kept memory and registrations are zero when all is over |
//! | `bytes` | what an engine has taken for processes that hang, what waits in it, and the large arguments in it are bounded in bytes, at all times |
//! | `refused` | operations that come back for want of room are few beside those that are accepted |
//! | `spins` | rounds that find nothing are few beside what happens |
//! | `drain` | what was in service when a process began to drain is answered before it closes, and what it refuses was not begun |
//! | `caller` | a handler is told which process has called |
//! | `lost` | every thread of a closed engine ends |

use hg_engine::Engine;

mod rules;

pub(crate) use self::rules::{Sides, ends_by_itself, has_room, is_possible};
use crate::{
    ended::Ended,
    events,
    rpcs::Kind,
    state::{self, Judged, Process, Record, Run},
    story::{Act, Call, Manner, contexts},
    watch::{BYTES_SLACK, LOOK, fail},
    world,
};

const MILLI: u64 = 1_000_000;
/// A call may end so much later than its deadline: an engine that spins reads the clock in every 32nd round, which is 8 ms here
/// where nothing happens (`RELAX_MAX` of the world), and a call whose answer is being pulled ends at the second reading: the first one stops
/// the transfer.
const SLACK: u64 = 20 * MILLI;
/// A call that has no reason to wait, and its handler, take at most so long.
const SLOW: u64 = 60 * MILLI;
/// A call ends so long after the death of its target.
const MOURNING: u64 = 60 * MILLI;
/// Whatever ends has ended by then.
const PATIENCE: u64 = 20_000 * MILLI;
/// Refused operations for one that was accepted.
const REFUSED_MAX: u64 = 3;
/// Rounds that find nothing for whatever happens to an endpoint.
const IDLE_MAX: u64 = 40;

/// Everything has happened: lets it end, and judges it.
pub(crate) fn finish() {
    wait_until(|| {
        state::with(|run| {
            let drains = |it: &Process| it.drains && it.lives && !it.hangs;
            run.processes.iter().all(|it| it.disturbed_until <= world::now() && !drains(it))
        })
    });
    world::sleep(20 * MILLI);
    check_bytes();
    if let Some(number) = wait_for_calls(|run, call| {
        !run.processes[call.to].hangs && ends_by_itself(&run.story, call)
    }) {
        return say_stuck(number, "does not end while others hold on to what they have");
    }
    events::be_over();
    if let Some(number) =
        wait_for_calls(|run, call| !run.processes[call.to].hangs && has_room(&run.story, call))
    {
        return say_stuck(number, "does not end");
    }
    judge_calls();
    probe();
    check_refused();
    let hung = state::with(|run| {
        let all = 1..run.processes.len();
        all.filter(|it| run.processes[*it].hangs).collect::<Vec<_>>()
    });
    hung.into_iter().for_each(events::kill);
    if let Some(number) = wait_for_calls(|_, _| true) {
        return say_stuck(number, "does not end although its target is dead");
    }
    judge_calls(); // Also of those that were killed now.
    // Handlers of one-way calls may go on.
    // Others may come after those: they wait in the transport.
    if !wait_until(|| what_is_left().is_none())
        && let Some((number, what, count)) = what_is_left()
    {
        fail("left", || format!("process {number} has {count} {what} when all is over"));
    }
    close_all();
}

fn wait_until(is_so: impl Fn() -> bool) -> bool {
    let limit = world::now() + PATIENCE;
    while !is_so() {
        if world::now() > limit || world::has_failed() {
            return false;
        }
        world::sleep(LOOK);
    }
    true
}

/// Waits for the calls of living processes; gives one that does not end.
fn wait_for_calls(is_judged: impl Fn(&Run, &Call) -> bool) -> Option<usize> {
    let open = || {
        state::with(|run| {
            let is_open = |(number, record): (usize, &Record)| {
                let call = &run.calls[number];
                let from = &run.processes[call.from];
                let lives = from.lives && !from.hangs && from.id == record.sides.0;
                let is_open = record.ended.is_none() && !record.is_nested;
                (is_open && lives && is_judged(run, call)).then_some(number)
            };
            run.records.iter().enumerate().find_map(is_open)
        })
    };
    if wait_until(|| open().is_none()) { None } else { open() }
}

fn say_stuck(number: usize, how: &str) {
    let (call, served) =
        state::with(|run| (run.calls[number].to_string(), run.records[number].served));
    fail("stuck", || format!("call {number} ({call}), served {served} times, {how}"));
}

fn judge_calls() {
    state::with(|run| {
        let mut judged = std::mem::take(&mut run.judged);
        judged.retain(|check, _| *check == "bytes");
        run.records.iter().zip(&run.calls).enumerate().for_each(|(number, (record, call))| {
            if let Some(broken) = judge_call(run, number, (record, call), &mut judged) {
                let check = broken.0;
                if run.checks.has(check) {
                    world::fail(|| format!("{check}: {}", broken.1));
                }
            }
        });
        run.judged = judged;
    });
}

fn judge_call(
    run: &Run,
    number: usize,
    (record, call): (&Record, &Call),
    judged: &mut Judged,
) -> Option<(&'static str, String)> {
    let mut judges = |check| *judged.entry(check).or_default() += 1;
    judges("twice");
    if record.served > 1 {
        return Some((
            "twice",
            format!("call {number} ({call}) was served {} times", record.served),
        ));
    }
    let from = &run.processes[call.from];
    let (at, ended) = record.ended.as_ref()?;
    if !from.lives || from.id != record.sides.0 {
        return None;
    }
    let to = &run.processes[call.to];
    if let Some(begun) = record.begun {
        if let Some(deadline) = call.deadline {
            judges("late");
            if *at > from.put_off(begun + deadline, SLACK) {
                let late = (at - begun - deadline) / 1000;
                let why = format!("call {number} ({call}) ended {late} us after its deadline");
                return Some(("late", why));
            }
        }
        if let Some(died) = to.died.filter(|_| to.id == record.sides.1) {
            judges("mourns");
            // One that is stopped closes later.
            let is_due = to.put_off(begun.max(died), 0);
            if *at > from.put_off(is_due, MOURNING) {
                let late = (at - died) / 1000;
                let why = format!("call {number} ({call}) ended {late} us after its target");
                return Some(("mourns", why));
            }
        }
        if has_no_reason_to_wait(run, call) {
            judges("slow");
            if at - begun > SLOW {
                let took = (at - begun) / 1000;
                return Some(("slow", format!("call {number} ({call}) took {took} us")));
            }
        }
    }
    judges("outcome");
    let Ended::Failed(kind, text) = ended else { return None };
    if record.served > 0 && text.contains("certainly not started") {
        let why = format!("call {number} ({call}) was served, and ended by {kind}: {text}");
        return Some(("outcome", why));
    }
    let sides = Sides {
        was_disturbed: from.disturbed_until > 0 || to.disturbed_until > 0,
        target_is_well: record.has_drained
            || to.lives && to.id == record.sides.1 && !to.hangs && !to.drains,
        target_was_restarted: to.was_restarted && !record.has_drained,
        target_has_drained: to.has_drained && record.served == 0,
        is_forgotten: run.forgotten.contains(&(call.from, call.to)),
    };
    let is_refused = *kind == "NotMade" && has_no_reason_to_wait(run, call);
    if is_possible(call, kind, sides) && !is_refused {
        return None;
    }
    let check = if record.has_drained || *kind == "Draining" { "drain" } else { "outcome" };
    let served = record.served;
    Some((check, format!("call {number} ({call}), served {served} times, ended by {kind}: {text}")))
}

/// Whether neither limits nor faults nor slow ways keep a call.
fn has_no_reason_to_wait(run: &Run, call: &Call) -> bool {
    let rules = &run.story.rules;
    let is_fast = rules.delay_max <= 100_000 && rules.credits >= 8 && rules.batch >= 8;
    let is_calm = |number: usize| {
        let (settings, it) = (run.story.processes.get(number - 1), &run.processes[number]);
        let is_free = settings.is_some_and(|it| {
            it.in_service_max >= 4096
                && it.pool_threads_max >= 500
                && it.calls_max >= 65_536
                && it.backlog_bytes_max >= 1 << 30
        });
        is_free && it.lives && it.disturbed_until == 0 && !it.was_restarted
    };
    let to_be_quick = matches!(call.act, Act::Answer(_) | Act::Refuse | Act::Panic | Act::After(_));
    let is_short = !call.lends() && !matches!(call.act, Act::Answer(len) if len >= 100);
    is_fast && to_be_quick && is_short && is_calm(call.from) && is_calm(call.to)
}

/// Every living process calls every other one.
fn probe() {
    let mut probes: Vec<_> = state::with(|run| {
        let is_well = |it: &usize| run.processes[*it].lives && !run.processes[*it].hangs;
        let all: Vec<_> = (1..run.processes.len()).filter(is_well).collect();
        let pairs = all.iter().flat_map(|from| all.iter().map(move |to| (*from, *to)));
        let both = |(from, to)| {
            let plain = Call::plain(from, to, Kind::Plain, Manner::Wait);
            [plain, Call::plain(from, to, Kind::Async, Manner::Await)]
        };
        pairs.filter(|(from, to)| from != to).flat_map(both).collect()
    });
    let limit = world::now() + PATIENCE;
    loop {
        let numbers: Vec<_> = probes.drain(..).map(events::start_call).collect();
        let has_ended = |run: &Run, number: usize| run.records[number].ended.is_some();
        wait_until(|| state::with(|run| numbers.iter().all(|number| has_ended(run, *number))));
        probes.extend(numbers.into_iter().filter_map(|it| judge_probe(it, world::now() < limit)));
        if probes.is_empty() {
            return;
        }
        world::sleep(LOOK);
    }
}

/// Gives a probe that is to be made once more.
fn judge_probe(number: usize, may_be_repeated: bool) -> Option<Call> {
    let (call, ended) = state::with(|run| {
        let ended = run.records[number].ended.as_ref().map(|(_, ended)| ended.clone());
        (run.calls[number].clone(), ended)
    });
    match ended {
        None => fail("probe", || format!("{call} does not end")),
        Some(Ended::Failed("NotMade", _)) if has_few_calls(&call) => {}
        Some(Ended::Failed("NotMade", _)) if may_be_repeated && has_more_waiting(&call) => {
            return Some(call);
        }
        Some(Ended::Failed(kind, text)) => {
            fail("probe", || format!("{call} ends by {kind}: {text}"))
        }
        Some(_) => {}
    }
    None
}

fn has_few_calls(call: &Call) -> bool {
    state::with(|run| run.story.processes[call.from - 1].calls_max < 1000)
}

/// Whether what the caller has sent may still wait, up to its share of the backlog: it has held all places that it gets at its target, or nobody
/// has waited for the end of what it has asked.
fn has_more_waiting(call: &Call) -> bool {
    let is_one_way = |it: &Call| (it.from, it.to) == (call.from, call.to) && it.manner.is_one_way();
    state::with(|run| run.story.is_hog(call.from, call.to) || run.calls.iter().any(is_one_way))
}

fn check_bytes() {
    let worst = state::with(|run| {
        let rules = &run.story.rules;
        let under_way = (rules.credits as usize + rules.queue_depth) * rules.message_max;
        let transport = (under_way * run.story.hung) as u64;
        let most = |number: usize| {
            let settings = &run.story.processes[number - 1];
            let contexts = settings.contexts as u64;
            contexts * (2 * settings.backlog_bytes_max + transport) + BYTES_SLACK
        };
        let all = 1..=run.story.processes.len();
        all.map(|it| (run.processes[it].bytes_to_hung, most(it))).find(|(bytes, most)| bytes > most)
    });
    if let Some((bytes, most)) = worst {
        fail("bytes", || {
            format!("{bytes} bytes were taken for processes that hang, {most} at most")
        });
    }
}

fn check_refused() {
    let worst = state::with(|run| {
        let net = run.net();
        let is_bad =
            |counts: &crate::net::Counts| counts.refused > 200 + REFUSED_MAX * counts.accepted;
        net.counts().find(|(_, counts)| is_bad(counts))
    });
    if let Some((_, counts)) = worst {
        fail("refused", || {
            let crate::net::Counts { refused, accepted, rounds, .. } = counts;
            format!("{refused} operations came back, {accepted} were accepted, in {rounds} rounds")
        });
    }
    let idle = state::with(|run| {
        let sleeps = |id: usize| {
            let number = run.processes.iter().position(|it| it.id == id)?;
            let settings = run.story.processes.get(number.checked_sub(1)?)?;
            Some(settings.background && settings.spin == Some(0))
        };
        let net = run.net();
        let is_bad = |counts: &crate::net::Counts| {
            counts.idle_rounds > 2000 + IDLE_MAX * (counts.completions + counts.accepted)
        };
        net.counts().find(|(id, counts)| sleeps(*id) == Some(true) && is_bad(counts))
    });
    if let Some((_, counts)) = idle {
        fail("spins", || {
            let crate::net::Counts { idle_rounds, completions, .. } = counts;
            format!("{idle_rounds} rounds found nothing beside {completions} completions")
        });
    }
}

/// Of which process, what, and how many.
fn what_is_left() -> Option<(usize, &'static str, usize)> {
    let living: Vec<_> = state::with(|run| {
        let processes = run.processes.iter().enumerate();
        let living = processes.filter(|(_, it)| it.lives && !it.hangs);
        living.filter_map(|(number, it)| Some((number, it.id, it.handle.clone()?))).collect()
    });
    for (number, id, handle) in living {
        let sum = |count: fn(&Engine) -> usize| contexts(&handle).map(|it| count(&it)).sum();
        let counts: [(_, usize); 6] = [
            ("requests in service", sum(Engine::requests_in_service)),
            ("calls", sum(Engine::calls_under_way)),
            ("transfers", sum(Engine::transfers_under_way)),
            ("arguments and results kept", sum(Engine::large_untaken)),
            ("bytes that wait", sum(Engine::backlog_bytes)),
            ("registrations", state::with(|run| run.net().regions.alive(id))),
        ];
        if let Some((what, count)) = counts.into_iter().find(|(_, count)| *count > 0) {
            return Some((number, what, count));
        }
    }
    None
}

fn close_all() {
    let all = state::with(|run| 1..run.processes.len());
    all.for_each(events::close);
    if !wait_until(|| world::threads_left() == 0) {
        fail("lost", || format!("{} threads do not end", world::threads_left()));
    }
}
