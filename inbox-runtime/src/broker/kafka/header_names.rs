//! Reading headers whose names are not UTF-8.
//!
//! Any client can write one, and rdkafka panics when it reads it. That panic must neither unwind into the inbox nor
//! reach the program's panic hook, which may end the process: the record would be redelivered and end the next one too.

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook},
    sync::Once,
};

thread_local! {
    /// Whether this thread is reading a header.
    static READING: Cell<bool> = const { Cell::new(false) };
}

/// Reads a header. `None` if its name isn't UTF-8.
pub(super) fn read<T>(header: impl FnOnce() -> T) -> Option<T> {
    READING.set(true);
    let read = catch_unwind(AssertUnwindSafe(header));
    READING.set(false);
    read.ok()
}

/// Wraps the current panic hook so that it doesn't see the panics of [`read`]. Only the first call has an effect.
pub(super) fn shield_hook() {
    static SHIELDED: Once = Once::new();
    // A panicking thread must not replace the hook; a later start does.
    if std::thread::panicking() {
        return;
    }
    SHIELDED.call_once(|| {
        let hook = take_hook();
        set_hook(Box::new(move |panic| {
            if !READING.get() {
                hook(panic);
            }
        }));
    });
}

/// Fails if panics can't be caught in this program.
pub(super) fn check(aborts: bool) -> Result<(), String> {
    if !aborts {
        return Ok(());
    }
    Err("this program was built with `panic = \"abort\"`: a Kafka record with a header whose name is not UTF-8 would end the process, \
         and after each restart again; leave `panic` out of the Cargo profile, or write `panic = \"unwind\"`"
        .to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        /// The panics of this thread that the hook has seen. Other tests of this program panic on threads of their own.
        static SEEN: Cell<u32> = const { Cell::new(0) };
    }

    #[test]
    fn g29_a_hook_does_not_see_the_panic_of_a_name() {
        let hook = take_hook();
        set_hook(Box::new(move |panic| {
            SEEN.set(SEEN.get() + 1);
            hook(panic);
        }));
        shield_hook();
        assert_eq!(read(|| -> u32 { panic!("not UTF-8") }), None);
        assert_eq!(read(|| 7), Some(7));
        assert_eq!(SEEN.get(), 0);
        assert!(catch_unwind(|| panic!("of the program")).is_err());
        assert_eq!(SEEN.get(), 1);
    }

    #[test]
    fn g29_a_program_whose_panics_abort_is_told_what_to_write() {
        let error = check(true).expect_err("an error");
        assert!(error.contains("panic = \"unwind\""), "{error}");
        assert_eq!(check(false), Ok(()));
    }
}
