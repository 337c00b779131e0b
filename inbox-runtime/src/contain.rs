//! Runs code of the application (arguments, handlers, their errors, a broker of its own) so that its panics end there.
//!
//! One thing can't be contained: a destructor that panics while another panic unwinds aborts the process.

use std::{
    any::Any,
    fmt,
    ops::{Deref, DerefMut},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
};

use futures_util::FutureExt;

/// Runs it. The error is the text of its panic.
pub(crate) fn contain<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(text_of)
}

/// Drops a value whose destructor may panic, which is logged. `what` names the value.
pub(crate) fn dispose<T>(what: &str, value: T) {
    if let Err(panic) = contain(|| drop(value)) {
        tracing::warn!(error = panic, "{what} panicked when it was dropped");
    }
}

/// The text of a value, or what its `Display` panicked with.
pub(crate) fn display(value: &(impl fmt::Display + ?Sized)) -> String {
    contain(|| value.to_string()).unwrap_or_else(|panic| format!("(its `Display` panicked: {panic})"))
}

/// The text of a panic. The payload may be anything, with a destructor that panics too; what that panics with is leaked.
fn text_of(payload: Box<dyn Any + Send>) -> String {
    let text = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no text)")
        .to_owned();
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(another);
    }
    text
}

/// A value whose destructor may panic, which is contained.
pub(crate) struct Owned<T> {
    what: &'static str,
    /// `None` only while it is dropped.
    value: Option<T>,
}

impl<T> Owned<T> {
    /// Takes a value. `what` names it in the log.
    pub(crate) fn new(what: &'static str, value: T) -> Self {
        Self {
            what,
            value: Some(value),
        }
    }
}

const DROPPED: &str = "it is being dropped";

impl<T> Deref for Owned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect(DROPPED)
    }
}

impl<T> DerefMut for Owned<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect(DROPPED)
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        dispose(self.what, self.value.take());
    }
}

/// A future that may panic when it is polled and when it is dropped. Its output is an error with the text of the panic if
/// its poll panics.
pub(crate) struct Contained<F>(Owned<F>);

impl<F> Contained<F> {
    /// Contains a future. `what` names it in the log.
    pub(crate) fn new(what: &'static str, future: F) -> Self {
        Self(Owned::new(what, future))
    }
}

impl<F: Future + Unpin> Future for Contained<F> {
    type Output = Result<F::Output, String>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match contain(|| self.0.poll_unpin(context)) {
            Ok(polled) => polled.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::panic_any;

    use super::*;

    /// Panics when it is dropped, with a value that panics when it is dropped, and so on.
    struct Bomb(u32);

    impl Drop for Bomb {
        fn drop(&mut self) {
            if self.0 > 0 {
                panic_any(Self(self.0 - 1));
            }
        }
    }

    #[test]
    fn g42_a_payload_that_panics_when_it_is_dropped_is_contained() {
        for depth in 0..4 {
            assert_eq!(contain(|| panic_any(Bomb(depth))), Err::<(), _>("(no text)".to_owned()));
            dispose("a bomb", Bomb(depth));
            drop(Owned::new("a bomb", Bomb(depth)));
        }
        assert_eq!(contain(|| panic!("{}", 1)), Err::<(), _>("1".to_owned()));
        assert_eq!(contain(|| 1), Ok(1));
    }

    #[tokio::test]
    async fn g42_a_future_that_panics_when_it_is_dropped_is_contained() {
        let bomb = Bomb(1);
        let mut future = Contained::new(
            "a future",
            Box::pin(async move {
                let _bomb = bomb;
                std::future::pending::<()>().await;
            }),
        );
        assert!((&mut future).now_or_never().is_none());
        drop(future);
        let panics = Contained::new("a future", Box::pin(async { panic!("in poll") }));
        assert_eq!(panics.await, Err::<(), _>("in poll".to_owned()));
    }
}
