//! Testing your own handlers: the whole path of a message in one test, with crashes at named points. Feature `testing`.
//!
//! A [`Harness`] runs handlers on an embedded broker in memory and on a database that the test gives: a [`TempSqlite`], or
//! any pool of SQLite or PostgreSQL. It handles one message at a time, in the test's own task, so that tests in parallel
//! know nothing of each other. The broker's clock stands still; where nothing is ready it is put forward to the next
//! delivery, so that no test waits for a back-off or for a lease, and the order of deliveries is the same each time.
//!
//! ```standalone_crate
//! use inbox_runtime::{
//!     Json, Message, Outcome, inbox_handler,
//!     sqlx::{self, SqliteConnection},
//!     testing::{Harness, Point, TempSqlite},
//! };
//!
//! #[inbox_handler(group = "billing", subject = "order.created")]
//! async fn create_invoice(tx: &mut SqliteConnection, Json(order_id): Json<String>) -> Result<(), sqlx::Error> {
//!     sqlx::query("INSERT INTO invoices (order_id) VALUES ($1)").bind(order_id).execute(&mut *tx).await?;
//!     Ok(())
//! }
//!
//! #[tokio::main(flavor = "current_thread")] // in a test: #[tokio::test]
//! async fn main() {
//!     let database = TempSqlite::new("CREATE TABLE invoices (order_id TEXT)").await;
//!     let mut inbox = Harness::start(database.pool(), |inbox| inbox.groups(["billing"])).await;
//!     inbox.publish(Message::new("order.created", r#""o1""#).id("evt-1")).await;
//!
//!     // The process dies between the commit and the acknowledgement, and the message comes again.
//!     inbox.crash_at(Point::AfterCommit).await;
//!     inbox.assert_not_acked("evt-1").await;
//!     inbox.assert_outcome("evt-1", Outcome::Duplicate).await;
//!     inbox.assert_acked("evt-1").await;
//!     inbox.assert_count("SELECT count(*) FROM invoices", 1).await;
//! }
//! ```
//!
//! What a crash leaves behind is what a killed process leaves behind: of the database what was committed, at the broker
//! what was not acknowledged. The process that comes after it knows nothing of the one before. What it can't show is the
//! end of something beside the handler's own task (a spawned task goes on), and what a power failure does to a disk.

use std::{fmt, panic::Location};

pub mod conformance;
mod database;
mod harness;
mod look;

#[cfg(feature = "sqlite")]
pub use database::TempSqlite;
pub use database::TestPool;
pub use harness::Harness;

pub use crate::failpoint::{Point, point};

/// The line of the test that asked for something, which is what a failure must name.
#[derive(Clone, Copy, Debug)]
struct Caller(&'static Location<'static>);

impl Caller {
    #[track_caller]
    fn here() -> Self {
        Self(Location::caller())
    }

    /// Ends the test.
    fn fail(self, why: impl fmt::Display) -> ! {
        panic!("{why} ({})", self.0)
    }
}
