//! The functions of a fabric: by the hash of their names, and by the short numbers that travel.

use std::marker::PhantomData;

use hg_core::{
    codec::{self, Codec as _, CodecError},
    rpc::{Responder, Rpc, RpcId, Serve, ServeKind},
};
use rustc_hash::FxHashMap;

use crate::{Error, Worker, returned::Status};

/// Decodes arguments and runs a function; what it returns is dropped.
pub(crate) type Run = fn(&Worker, &[u8]) -> Result<(), CodecError>;
/// The same; what it returns is sent to whoever has called it.
pub(crate) type RunAndAnswer = fn(&Worker, &[u8], Reply) -> Result<(), CodecError>;

/// The same; once the arguments were read, and before the function runs, the closure does.
pub(crate) type RunAndPassOn = fn(&Worker, &[u8], &dyn Fn()) -> Result<(), CodecError>;

/// Who wants the result of a call: an end, and the number by which it knows the call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reply {
    pub(crate) to: u32,
    pub(crate) number: u64,
}

#[derive(Debug, Clone, Copy)]
struct Function {
    id: RpcId,
    name: &'static str,
    run: Run,
    run_and_answer: RunAndAnswer,
    run_and_pass_on: RunAndPassOn,
}

/// All processes register the same functions; the number of one is its place in the order of hashes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Functions {
    list: Vec<Function>,
    /// Those of the fabric's own, whose numbers begin at [`OWN`].
    own: Vec<Function>,
    places: FxHashMap<RpcId, u32>,
}

impl Functions {
    /// With one of the fabric's own.
    pub(crate) fn with_own<F: Serve<Worker>>(mut self) -> Self {
        self.own.push(Function::of::<F>());
        self.number_all();
        self
    }

    pub(crate) fn add<F: Serve<Worker>>(&mut self) -> Result<(), Error> {
        if F::KIND != ServeKind::Plain {
            let why = "is asynchronous or blocking: functions that are called run at once";
            return Err(Error::Setup(format!("`{}` {why}", F::NAME)));
        }
        let id = F::wire_id();
        if let Some(other) =
            self.list.iter().chain(&self.own).find(|other| other.id.has_name_of(id))
        {
            let why = "is registered already, or has the same hash as";
            return Err(Error::Setup(format!("`{}` {why} `{}`", F::NAME, other.name)));
        }
        self.list.push(Function::of::<F>());
        self.list.sort_unstable_by_key(|it| it.id);
        self.number_all();
        Ok(())
    }

    fn number_all(&mut self) {
        let all = self.list.iter().zip(0..).chain(self.own.iter().zip(OWN..));
        self.places = all.map(|(it, number)| (it.id, number)).collect();
    }

    /// The hashes, in the order of numbers.
    pub(crate) fn ids(&self) -> Vec<u64> {
        self.list.iter().map(|it| it.id.0).collect()
    }

    /// What another process has otherwise, if anything: its hashes, in their order.
    pub(crate) fn differ(&self, there: &[u64]) -> Option<String> {
        if let Some(here) = self.list.iter().find(|it| !there.contains(&it.id.0)) {
            let has_name = there.iter().any(|it| RpcId(*it).has_name_of(here.id));
            let how = if has_name {
                "has registered with other arguments, or another result"
            } else {
                "has not registered"
            };
            return Some(format!("{how}: `{}`", here.name));
        }
        let is_here = |id: &u64| self.places.contains_key(&RpcId(*id));
        let more = there.iter().filter(|id| !is_here(id)).count();
        (more > 0).then(|| format!("has registered more functions, {more}: it says which"))
    }

    #[inline]
    pub(crate) fn number<F: Rpc>(&self) -> Result<u32, Error> {
        self.places.get(&F::wire_id()).copied().ok_or(Error::NotRegistered(F::NAME))
    }

    #[inline]
    pub(crate) fn run(&self, number: u32) -> Option<Run> {
        self.list.get(number as usize).or_else(|| self.own(number)).map(|it| it.run)
    }

    pub(crate) fn run_and_answer(&self, number: u32) -> Option<RunAndAnswer> {
        self.list.get(number as usize).or_else(|| self.own(number)).map(|it| it.run_and_answer)
    }

    pub(crate) fn run_and_pass_on(&self, number: u32) -> Option<RunAndPassOn> {
        self.list.get(number as usize).or_else(|| self.own(number)).map(|it| it.run_and_pass_on)
    }

    #[cold]
    fn own(&self, number: u32) -> Option<&Function> {
        self.own.get(number.checked_sub(OWN)? as usize)
    }
}

impl Function {
    fn of<F: Serve<Worker>>() -> Self {
        Self {
            id: F::wire_id(),
            name: F::NAME,
            run: run::<F>,
            run_and_answer: run_and_answer::<F>,
            run_and_pass_on: run_and_pass_on::<F>,
        }
    }
}

/// Number of the first function of the fabric's own.
const OWN: u32 = 1 << 23;

fn run<F: Serve<Worker>>(worker: &Worker, bytes: &[u8]) -> Result<(), CodecError> {
    let args = codec::Default::decode(bytes)?;
    F::serve(worker, args, Nobody);
    Ok(())
}

fn run_and_pass_on<F: Serve<Worker>>(
    worker: &Worker,
    bytes: &[u8],
    pass_on: &dyn Fn(),
) -> Result<(), CodecError> {
    let args = codec::Default::decode(bytes)?;
    pass_on();
    F::serve(worker, args, Nobody);
    Ok(())
}

fn run_and_answer<F: Serve<Worker>>(
    worker: &Worker,
    bytes: &[u8],
    reply: Reply,
) -> Result<(), CodecError> {
    let args = codec::Default::decode(bytes)?;
    F::serve(worker, args, Caller::<F> { worker, reply, of: PhantomData });
    Ok(())
}

/// Takes what a function returns, and sends it to its caller.
struct Caller<'a, F> {
    worker: &'a Worker,
    reply: Reply,
    of: PhantomData<F>,
}

impl<F: Rpc> Responder<F::Output, F::Error> for Caller<'_, F> {
    type Done = ();

    fn now(self, result: Result<F::Output, F::Error>) {
        match result.map(F::pack_output) {
            Ok(output) => self.worker.answer(self.reply, Status::Returned, &output),
            Err(error) => self.worker.answer(self.reply, Status::Failed, &error),
        }
    }

    fn later<T>(self, _future: T)
    where
        T: Future<Output = Result<F::Output, F::Error>> + Send + 'static,
    {
        unreachable!("registering refuses functions that answer later");
    }
}

/// Takes what a function returns, and drops it.
struct Nobody;

impl<T, E> Responder<T, E> for Nobody {
    type Done = ();

    fn now(self, _result: Result<T, E>) {}

    fn later<F>(self, _future: F)
    where
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        unreachable!("registering refuses functions that answer later");
    }
}
