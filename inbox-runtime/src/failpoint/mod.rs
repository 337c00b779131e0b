//! Named points on the path of a message, at which a test can kill the process or let its harness crash; nothing at all in
//! a normal build.

#[cfg(feature = "testing")]
mod point;

#[cfg(feature = "testing")]
pub(crate) use point::{HarnessEvent, Settled, Watch, message_id, notify, reach_named};
#[cfg(feature = "testing")]
pub use point::{Point, point};

/// Marks a point on the path of a message, as `inbox::<name>`.
macro_rules! failpoint {
    ($name:literal) => {
        #[cfg(feature = "__failpoints")]
        fail::fail_point!(concat!("inbox::", $name));
        #[cfg(feature = "testing")]
        crate::failpoint::reach_named($name).await;
    };
}

/// Notifies the harness of a user's test of an event, if this build has it.
macro_rules! notify_harness {
    ($event:expr) => {
        #[cfg(feature = "testing")]
        crate::failpoint::notify(|| $event);
    };
}

pub(crate) use {failpoint, notify_harness};
