//! Named points on the path of a message, at which a test can kill the process or let its harness crash; nothing at all in
//! a normal build.

/// Marks a point on the path of a message, as `inbox::<name>`.
macro_rules! failpoint {
    ($name:literal) => {
        #[cfg(feature = "__failpoints")]
        fail::fail_point!(concat!("inbox::", $name));
        #[cfg(feature = "testing")]
        crate::testing::reach_named($name).await;
    };
}

/// Tells the harness of a user's test something, if this build has it.
macro_rules! tell_test {
    ($told:expr) => {
        #[cfg(feature = "testing")]
        crate::testing::tell(|| $told);
    };
}

pub(crate) use {failpoint, tell_test};
