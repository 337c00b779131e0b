//! How a failed expectation of a test is reported.

use std::{fmt, panic::Location};

/// The line of the test that called the harness.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller(&'static Location<'static>);

impl Caller {
    #[track_caller]
    pub(super) fn here() -> Self {
        Self(Location::caller())
    }

    /// Ends the test.
    pub(super) fn fail(self, why: impl fmt::Display) -> ! {
        panic!("{why} ({})", self.0)
    }
}

/// The items, joined by the separator; "nothing" if there are none.
pub(super) fn list<T: AsRef<str>>(items: &[T], separator: &str) -> String {
    if items.is_empty() {
        return "nothing".to_owned();
    }
    let items: Vec<_> = items.iter().map(AsRef::as_ref).collect();
    items.join(separator)
}
