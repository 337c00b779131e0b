//! Testing your own handlers: the whole path of a message in one test, with crashes at named points. Feature `testing`.
//!
//! A [`Harness`] runs handlers on an embedded broker in memory and on a database of the test: a [`TempSqlite`], or any pool of
//! SQLite or PostgreSQL. It handles one message at a time, in the test's own task, so that tests can
//! run in parallel. The broker's clock stands still; where nothing is ready it is advanced to the next delivery, so that no
//! test waits for a back-off or a lease, and the order of deliveries is the same each time.
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
//!     // The process dies between the commit and the acknowledgement, and the message is redelivered.
//!     inbox.crash_at(Point::AfterCommit).await;
//!     inbox.assert_not_acked("evt-1").await;
//!     inbox.assert_outcome("evt-1", Outcome::Duplicate).await;
//!     inbox.assert_acked("evt-1").await;
//!     inbox.assert_count("SELECT count(*) FROM invoices", 1).await;
//! }
//! ```
//!
//! A crash leaves what a killed process leaves: in the database what was committed, at the broker what was not acknowledged.
//! The next process shares no memory with it. It does not show the end of a task that the handler has spawned (that task goes
//! on), nor what a power failure does to a disk.

mod assertions;
pub mod conformance;
mod database;
mod failure;
mod harness;
mod outbox;

#[cfg(feature = "sqlite")]
pub use database::TempSqlite;
pub use database::TestPool;
pub use harness::Harness;
pub use outbox::TestOutbox;

pub use crate::failpoint::{Point, point};
