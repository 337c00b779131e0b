//! Named points on the path of a message, at which a test can kill the process or let its harness crash; nothing at all in
//! a normal build.

#[cfg(feature = "testing")]
mod point;

#[cfg(feature = "testing")]
pub use point::{Point, point};
#[cfg(feature = "testing")]
pub(crate) use point::{Settled, Told, Watch, message_id, reach_named, tell};

/// Marks a point on the path of a message, as `inbox::<name>`.
macro_rules! failpoint {
    ($name:literal) => {
        #[cfg(feature = "__failpoints")]
        fail::fail_point!(concat!("inbox::", $name));
        #[cfg(feature = "testing")]
        crate::failpoint::reach_named($name).await;
    };
}

/// Tells the harness of a user's test something, if this build has it.
macro_rules! tell_test {
    ($told:expr) => {
        #[cfg(feature = "testing")]
        crate::failpoint::tell(|| $told);
    };
}

pub(crate) use {failpoint, tell_test};
