//! The ways in which an engine is given a handler: the same before it is opened and while it is open.

/// Methods of `$this` that give `$done`, by its `insert`.
macro_rules! registering {
    ($this:ty => $done:ty) => {
        /// Serves an RPC with the body that `#[hg::rpc]` was put on, in all contexts. An engine that listens is better given its
        /// handlers before it is opened, by [`Builder::register`](crate::Builder::register).
        ///
        /// # Errors
        /// [`RegisterError`].
        pub fn register<R: Serve<Request>>(self: $this, rpc: R) -> Result<$done, RegisterError> {
            let _: R = rpc;
            self.insert::<R>(of_function::<R>())
        }

        /// Serves an RPC with a closure, run by the thread that makes progress: it must not block.
        ///
        /// # Errors
        /// [`RegisterError`].
        pub fn serve<R, F>(self: $this, rpc: R, function: F) -> Result<$done, RegisterError>
        where
            R: Rpc,
            F: for<'a> Fn(&'a Request, R::Args<'a>) -> Result<R::Output, R::Error>,
            F: Send + Sync + 'static,
        {
            let _: R = rpc;
            self.insert::<R>(of_closure::<R, F>(ServeKind::Plain, function))
        }

        /// Serves an RPC with a closure that may block, run by the engine's pool of threads, or by a runtime of the user's
        /// ([`Builder::runtime`](crate::Builder::runtime)).
        ///
        /// # Errors
        /// [`RegisterError`].
        pub fn serve_blocking<R, F>(
            self: $this,
            rpc: R,
            function: F,
        ) -> Result<$done, RegisterError>
        where
            R: Rpc,
            F: for<'a> Fn(&'a Request, R::Args<'a>) -> Result<R::Output, R::Error>,
            F: Send + Sync + 'static,
        {
            let _: R = rpc;
            self.insert::<R>(of_closure::<R, F>(ServeKind::Blocking, function))
        }

        /// Serves an RPC with a closure that gives a future, polled by the thread that makes progress, or by a runtime of the user's
        /// ([`Builder::runtime`](crate::Builder::runtime)). Borrowed arguments (`&str`, `&[u8]`) end with the closure: make them owned
        /// before `async move` (an `async fn` with `#[hg::rpc]` does it by itself).
        ///
        /// # Errors
        /// [`RegisterError`].
        pub fn serve_async<R, F, Fut>(
            self: $this,
            rpc: R,
            function: F,
        ) -> Result<$done, RegisterError>
        where
            R: Rpc,
            F: for<'a> Fn(Request, R::Args<'a>) -> Fut + Send + Sync + 'static,
            Fut: Future<Output = Result<R::Output, R::Error>> + Send + 'static,
        {
            let _: R = rpc;
            self.insert::<R>(of_async_closure::<R, F, Fut>(function))
        }

        /// Serves an RPC with a closure that is given an [`Answer`], to be sent now or later from any thread.
        ///
        /// # Errors
        /// [`RegisterError`].
        pub fn serve_later<R, F>(self: $this, rpc: R, function: F) -> Result<$done, RegisterError>
        where
            R: Rpc,
            F: for<'a> Fn(&'a Request, R::Args<'a>, Answer<R>) + Send + Sync + 'static,
        {
            let _: R = rpc;
            self.insert::<R>(of_later_closure::<R, F>(function))
        }
    };
}

pub(crate) use registering;
