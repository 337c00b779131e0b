//! One call of a handler: its arguments are decoded, and it waits for its transaction.

use std::{fmt, future::Future, mem, pin::Pin};

use crate::{
    contain::dispose,
    extract::Collector,
    outcome::{Handled, HandlerError, IntoOutcome},
    store::Store,
};

/// The future of a running handler.
pub type HandlerFuture<'t> = Pin<Box<dyn Future<Output = Result<Handled, HandlerError>> + Send + 't>>;

type Call<C> = Box<dyn for<'t> FnOnce(&'t mut C) -> HandlerFuture<'t> + Send>;

/// One call of a handler, with its arguments, waiting for the transaction.
pub struct Invocation<S: Store> {
    /// `None` when it is running.
    call: Option<Call<S::Conn>>,
    collector: Collector,
}

impl<S: Store> Invocation<S> {
    /// Wraps the call. The closure must be written in the call to this function: if it is assigned to a variable first, its
    /// lifetime is not inferred.
    pub fn new<F>(call: F) -> Self
    where
        F: for<'t> FnOnce(&'t mut S::Conn) -> HandlerFuture<'t> + Send + 'static,
    {
        Self {
            call: Some(Box::new(call)),
            collector: Collector::new(),
        }
    }

    /// With what its arguments collect.
    pub(crate) fn collecting(mut self, collector: Collector) -> Self {
        self.collector = collector;
        self
    }

    /// Where its arguments collect; complete when the handler has returned.
    pub(crate) fn take_collector(&mut self) -> Collector {
        mem::take(&mut self.collector)
    }

    /// Runs the handler inside a transaction that is open on `conn`.
    pub(crate) fn call(mut self, conn: &mut S::Conn) -> HandlerFuture<'_> {
        match self.call.take() {
            Some(call) => call(conn),
            None => unreachable!("a call takes the handler with it"),
        }
    }
}

impl<S: Store> Drop for Invocation<S> {
    /// The arguments of a handler that doesn't run (of a duplicate, for one) are dropped here. A destructor of theirs
    /// that panics must not take the worker with it.
    fn drop(&mut self) {
        dispose("an argument of a handler that did not run", self.call.take());
    }
}

impl<S: Store> fmt::Debug for Invocation<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Invocation").finish_non_exhaustive()
    }
}

/// A return type, checked to be one that a handler may have.
#[derive(Debug)]
pub struct Returns<R>(fn(R) -> Result<Handled, HandlerError>);

/// Carries the bound on the return type, so that a wrong one is reported at the return type and once.
#[must_use]
pub fn outcome<R: IntoOutcome>() -> Returns<R> {
    Returns(R::into_outcome)
}

/// Boxes the handler's future. Carries the bound that it is `Send`, so that a breach is reported at the function's name.
#[expect(clippy::needless_pass_by_value, reason = "the expansion makes it in the call")]
pub fn run<'t, F, R>(handler: F, returns: Returns<R>) -> HandlerFuture<'t>
where
    F: Future<Output = R> + Send + 't,
    R: 't,
{
    let Returns(into_outcome) = returns;
    Box::pin(async move { into_outcome(handler.await) })
}
