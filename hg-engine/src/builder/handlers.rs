//! Handlers that are there before anybody can call.

use hg_core::{
    registry::RegisterError,
    rpc::{Rpc, Serve, ServeKind},
};

use super::Builder;
use crate::{
    Answer, Request,
    port::Handler,
    serve::{of_async_closure, of_closure, of_function, of_later_closure},
};

/// Handlers of the engine to be opened. An engine that listens is found by its peers before
/// [`Engine::register`](crate::Engine::register) can be called: those who call it then are told that it knows no such RPC. What is
/// registered here is served from the first request on.
impl Builder {
    /// Serves an RPC with the body that `#[hg::rpc]` was put on, as [`Engine::register`](crate::Engine::register) does.
    ///
    /// # Errors
    /// [`RegisterError`].
    pub fn register<R: Serve<Request>>(self, rpc: R) -> Result<Self, RegisterError> {
        let _: R = rpc;
        self.insert::<R>(of_function::<R>())
    }

    /// Serves an RPC with a closure, as [`Engine::serve`](crate::Engine::serve) does.
    ///
    /// # Errors
    /// [`RegisterError`].
    pub fn serve<R, F>(self, rpc: R, function: F) -> Result<Self, RegisterError>
    where
        R: Rpc,
        F: for<'a> Fn(&'a Request, R::Args<'a>) -> Result<R::Output, R::Error>
            + Send
            + Sync
            + 'static,
    {
        let _: R = rpc;
        self.insert::<R>(of_closure::<R, F>(ServeKind::Plain, function))
    }

    /// Serves an RPC with a closure that may block, as [`Engine::serve_blocking`](crate::Engine::serve_blocking) does.
    ///
    /// # Errors
    /// [`RegisterError`].
    pub fn serve_blocking<R, F>(self, rpc: R, function: F) -> Result<Self, RegisterError>
    where
        R: Rpc,
        F: for<'a> Fn(&'a Request, R::Args<'a>) -> Result<R::Output, R::Error>
            + Send
            + Sync
            + 'static,
    {
        let _: R = rpc;
        self.insert::<R>(of_closure::<R, F>(ServeKind::Blocking, function))
    }

    /// Serves an RPC with a closure that gives a future, as [`Engine::serve_async`](crate::Engine::serve_async) does.
    ///
    /// # Errors
    /// [`RegisterError`].
    pub fn serve_async<R, F, Fut>(self, rpc: R, function: F) -> Result<Self, RegisterError>
    where
        R: Rpc,
        F: for<'a> Fn(Request, R::Args<'a>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R::Output, R::Error>> + Send + 'static,
    {
        let _: R = rpc;
        self.insert::<R>(of_async_closure::<R, F, Fut>(function))
    }

    /// Serves an RPC with a closure that is given an [`Answer`], as [`Engine::serve_later`](crate::Engine::serve_later) does.
    ///
    /// # Errors
    /// [`RegisterError`].
    pub fn serve_later<R, F>(self, rpc: R, function: F) -> Result<Self, RegisterError>
    where
        R: Rpc,
        F: for<'a> Fn(&'a Request, R::Args<'a>, Answer<R>) + Send + Sync + 'static,
    {
        let _: R = rpc;
        self.insert::<R>(of_later_closure::<R, F>(function))
    }

    fn insert<R: Rpc>(mut self, handler: Handler) -> Result<Self, RegisterError> {
        self.handlers.insert(R::NAME, R::signature(), handler)?;
        Ok(self)
    }
}
