//! Named points at which a test can kill the process; nothing at all in a normal build.

/// Marks a point on the path of a message, as `inbox::<name>`.
macro_rules! failpoint {
    ($name:literal) => {
        #[cfg(feature = "__failpoints")]
        fail::fail_point!(concat!("inbox::", $name));
    };
}

pub(crate) use failpoint;
