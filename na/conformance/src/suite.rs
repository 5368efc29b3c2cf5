//! What is tested, where, and with how much patience; and the frame around each test.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::Duration,
};

use hg_na::{Address, Domain, Error, Memory, OpenOptions, Plugin};

use crate::{
    faulty::{Faults, Faulty},
    outcome::Outcome,
    patience::Patience,
};

/// Name of the test that [`crate::suite!`] makes for the child to be.
pub(crate) const CHILD_TEST: &str = "a_second_process_is_answered_and_ends_with_its_parent";

/// Time after which a test counts as blocked, when none of its own bounds has ended it.
const BLOCKED_AFTER: Duration = Duration::from_secs(130);

/// A plugin and how the suite uses it.
#[derive(Debug, Clone)]
pub struct Suite {
    pub(crate) plugin: Arc<dyn Plugin>,
    pub(crate) url: String,
    named: Option<String>,
    /// Makes memory that peers can view: of these bytes, frozen or not.
    pub(crate) frozen: Maker,
    pub(crate) shareable: Option<Maker>,
    pub(crate) patience: Patience,
    blocked_after: Duration,
    /// Says why a call may block.
    report: fn() -> String,
    /// Name of the test that is the child's entry, in this test binary.
    pub(crate) child_test: Option<String>,
}

/// Makes memory of given bytes.
pub type Maker = fn(&[u8]) -> Result<Memory, Error>;

/// One test of the suite.
#[derive(Debug, Clone, Copy)]
pub struct Test {
    /// A sentence that is true when the test passes.
    pub name: &'static str,
    /// The test.
    pub run: fn(&Suite) -> Outcome,
}

impl Suite {
    /// A suite over domains that are opened as `url`, e.g. `sm://`.
    #[must_use]
    pub fn new(plugin: impl Plugin + 'static, url: &str) -> Self {
        let patience = Patience {
            time: Duration::from_secs(60),
            idle_rounds: u64::MAX,
            sleep: Duration::from_secs(30),
        };
        Self {
            plugin: Arc::new(plugin),
            url: url.to_owned(),
            named: None,
            frozen: |bytes| Ok(Memory::from(Arc::<[u8]>::from(bytes))),
            shareable: None,
            patience,
            blocked_after: BLOCKED_AFTER,
            report: String::new,
            child_test: None,
        }
    }

    /// How a domain with a chosen name is opened; `{}` stands for the name. The default is the
    /// suite's URL with the name behind it.
    #[must_use]
    pub fn named(mut self, template: &str) -> Self {
        self.named = Some(template.to_owned());
        self
    }

    /// Memory that nobody can write any more, and that peers can view; where the plugin has views. The default is
    /// an `Arc<[u8]>`.
    #[must_use]
    pub fn frozen(mut self, maker: Maker) -> Self {
        self.frozen = maker;
        self
    }

    /// Memory that its owner can still write, and that peers can view; where there is such a thing.
    #[must_use]
    pub fn shareable(mut self, maker: Maker) -> Self {
        self.shareable = Some(maker);
        self
    }

    /// How long to wait before something counts as lost.
    #[must_use]
    pub fn patience(mut self, patience: Patience) -> Self {
        self.patience = patience;
        self
    }

    /// How long a whole test may take before a call in it counts as blocked.
    #[must_use]
    pub fn blocked_after(mut self, limit: Duration) -> Self {
        self.blocked_after = limit;
        self
    }

    /// Who is asked, when a call has blocked, what the threads of all processes are doing.
    #[must_use]
    pub fn report(mut self, report: fn() -> String) -> Self {
        self.report = report;
        self
    }

    /// For [`crate::suite!`]: the module in which it was expanded, where the child's test is.
    #[must_use]
    pub fn in_module(mut self, module: &str) -> Self {
        let inner = module.split_once("::").map(|(_, inner)| format!("{inner}::"));
        self.child_test = Some(inner.unwrap_or_default() + CHILD_TEST);
        self
    }

    /// The same suite with faults before its plugin.
    pub(crate) fn with_faults(&self, faults: Faults) -> Self {
        let plugin = Arc::new(Faulty::around(Arc::clone(&self.plugin), faults));
        Self { plugin, ..self.clone() }
    }

    /// Runs one test in a thread of its own, so that a call that blocks or panics is an answer too.
    ///
    /// # Errors
    /// The sentence that says what was broken.
    pub fn run(&self, test: Test) -> Outcome {
        let (tell, told) = mpsc::channel();
        let suite = self.clone();
        let body = move || {
            let verdict =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (test.run)(&suite)));
            // Nobody listens any more when the test was given up as blocked.
            let _ = tell.send(verdict);
        };
        let thread = std::thread::Builder::new().name(test.name.to_owned()).spawn(body);
        thread.map_err(|error| format!("no thread for the test: {error}"))?;
        match told.recv_timeout(self.blocked_after) {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(panic)) => Err(format!("it panicked: {}", panic_text(panic.as_ref()))),
            Err(_) => {
                let report = (self.report)();
                Err(format!("a call blocked: no end after {:?}\n{report}", self.blocked_after))
            }
        }
    }

    pub(crate) fn open(&self, url: &str, options: &OpenOptions) -> Outcome<Arc<dyn Domain>> {
        self.once_free(|| self.try_open(url, options))
            .map_err(|error| format!("{url} does not open: {error}"))
    }

    /// Opens something, and waits while its address is in use: another test may be starting a
    /// process, which holds copies of this one's descriptors until its `exec`.
    pub(crate) fn once_free<T>(
        &self,
        mut open: impl FnMut() -> Result<T, hg_na::Error>,
    ) -> Result<T, hg_na::Error> {
        let mut clock = self.patience.start();
        loop {
            match open() {
                Err(hg_na::Error::AddressInUse(_)) if clock.patient(false) => {}
                decided => return decided,
            }
        }
    }

    pub(crate) fn try_open(
        &self,
        url: &str,
        options: &OpenOptions,
    ) -> Result<Arc<dyn Domain>, hg_na::Error> {
        self.plugin.open(&Address::new(url)?, options)
    }

    /// A URL with a name that nobody else uses.
    pub(crate) fn fresh_name(&self) -> String {
        static LAST: AtomicU64 = AtomicU64::new(0);
        // Relaxed: only the number counts.
        let serial = LAST.fetch_add(1, Ordering::Relaxed);
        let name = format!("conformance-{}-{serial}", std::process::id());
        match &self.named {
            Some(template) => template.replace("{}", &name),
            None => format!("{}{name}", self.url),
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no words").to_owned()
}
