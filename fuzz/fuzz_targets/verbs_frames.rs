//! Frames come from whoever has a queue pair with a context: of any bytes, for any line, none hurts another peer's connection.
//!
//! The bytes are messages one after the other: which line they name, their length, themselves.
#![no_main]

#[path = "../../na/verbs/tests/imitated/imitation/mod.rs"]
#[expect(dead_code, reason = "some of it is for tests")]
mod imitation;

use std::{
    cell::RefCell,
    sync::Arc,
    time::{Duration, Instant},
};

use hg_na::{Completion, Context, Domain, Message, Op, OpenOptions, Peer, Plugin as _};
use libfuzzer_sys::fuzz_target;

const PATIENCE: Duration = Duration::from_secs(8);
/// The first line that a context gives out: the good client's.
const GOOD: u32 = 16;

struct End {
    _domain: Arc<dyn Domain>,
    context: Box<dyn Context>,
}

impl End {
    fn open(url: &str) -> Self {
        let url = url.parse().expect("an address");
        let plugin = hg_na_verbs::VerbsPlugin::over(&imitation::LIBRARY);
        let domain = plugin.open(&url, &OpenOptions::listening()).expect("it is imitated");
        let context = domain.context(0).expect("the first one");
        Self { _domain: domain, context }
    }

    fn step(&mut self) -> Vec<Completion> {
        let mut done = Vec::new();
        self.context.progress(Instant::now(), &mut done).expect("no peer ends an endpoint");
        done
    }

    /// Says something to the victim, which hears it.
    fn calls(&mut self, there: Peer, victim: &mut End) {
        let message = Message::copied(b"good");
        self.context.post(1, Op::SendUnexpected { to: there, message }).expect("it is taken");
        let (end, is_it) = (Instant::now() + PATIENCE, |it: &Completion| match it {
            Completion::Unexpected { message, .. } => message.as_slice() == b"good",
            _ => false,
        });
        while !victim.step().iter().any(is_it) {
            assert!(Instant::now() < end, "a good client is not heard");
            self.step();
        }
    }
}

struct Scene {
    victim: End,
    good: End,
    there: Peer,
    bad: Option<End>,
    /// The line of the bad one.
    line: u32,
}

impl Scene {
    fn new() -> Self {
        let (mut victim, mut good) =
            (End::open("verbs://imitated0"), End::open("verbs://imitated1"));
        let there = good.context.lookup(victim.context.address()).expect("an address");
        good.calls(there, &mut victim);
        Self { victim, good, there, bad: None, line: GOOD }
    }

    /// The queue pair of the bad one, who comes anew where he was sent away.
    fn pair(&mut self) -> u32 {
        if self.bad.is_none() {
            let mut bad = End::open("verbs://imitated1");
            let there = bad.context.lookup(self.victim.context.address()).expect("an address");
            bad.calls(there, &mut self.victim);
            (self.bad, self.line) = (Some(bad), self.line + 1);
        }
        *imitation::pairs(0).last().expect("the newest one")
    }
}

thread_local! {
    static SCENE: RefCell<Scene> = RefCell::new(Scene::new());
}

fuzz_target!(|data: &[u8]| SCENE.with_borrow_mut(|scene| {
    let (pair, mut rest, mut is_gone) = (scene.pair(), data, false);
    while let Some(([line, low, high], bytes)) = rest.split_first_chunk() {
        let len = usize::from(u16::from_le_bytes([*low, *high])).min(bytes.len()).min(4096);
        let word = match line % 4 {
            0 => scene.line,
            1 => GOOD,
            _ => u32::from(*line),
        };
        imitation::say_to(pair, word, &bytes[..len]);
        rest = &bytes[len..];
        for it in scene.victim.step() {
            is_gone |= matches!(it, Completion::Gone { .. });
        }
    }
    scene.good.calls(scene.there, &mut scene.victim);
    if is_gone || imitation::pairs(0).len() < 2 {
        scene.bad = None;
        let end = Instant::now() + PATIENCE;
        while imitation::pairs(0).len() > 1 {
            assert!(Instant::now() < end, "its queue pair is never gone");
            scene.victim.step();
        }
    }
}));
