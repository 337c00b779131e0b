//! The transactional inbox: handlers whose effects exist exactly once, however often the broker delivers.
//!
//! Every broker delivers at least once. The inbox makes the effects of a handler happen *effectively once*: one row per
//! message and consumer group is inserted in the same database transaction as the effects, and the message is acknowledged
//! after the commit. Everything that a handler does outside of its transaction happens *at least once*; both provided that
//! the broker redelivers what was not acknowledged.
//!
//! ```
//! # #[cfg(all(feature = "macros", feature = "embedded", feature = "sqlite"))]
//! # mod example {
//! use inbox_runtime::{Json, inbox_handler, sqlx::{self, SqliteConnection}};
//!
//! #[derive(serde::Deserialize)]
//! struct OrderCreated { order_id: String, amount_cents: i64 }
//!
//! #[inbox_handler(group = "billing", subject = "order.created")]
//! async fn create_invoice(tx: &mut SqliteConnection, Json(order): Json<OrderCreated>) -> Result<(), sqlx::Error> {
//!     sqlx::query("INSERT INTO invoices (order_id, amount_cents) VALUES ($1, $2)")
//!         .bind(order.order_id)
//!         .bind(order.amount_cents)
//!         .execute(&mut *tx)
//!         .await?;
//!     Ok(())
//! }
//! # }
//! ```
//!
//! # The path of a message
//!
//! ```text
//! broker ─▶ decode ─▶ begin ─▶ claim ─▶ handle ─▶ seal ─▶ commit ─▶ ack
//!             │                  │         │        │        │
//!          reject         duplicate│locked error  broken   error
//!             ▼               ack  │ later   ▼        ▼
//!        dead letter               ▼      rollback; nothing was acknowledged, so the message is redelivered
//! ```
//!
//! 1. *Decode* makes the handler's arguments from the delivery: [`Json`], [`Envelope`], [`State`], [`Meta`], [`Header`], and every type
//!    that implements [`FromDelivery`]. A message that can't be decoded goes to the [`dead_letters`] without a transaction.
//! 2. *Claim* inserts the inbox row, first statement of the transaction. If it is there, the message is a duplicate.
//! 3. The handler writes through the transaction that it borrows. It may return an error of any type ([`HandlerError`]).
//! 4. *Seal* proves that the transaction is still the one that holds the claim; a handler that ends it itself is detected.
//! 5. Only a confirmed commit is followed by the acknowledgement.
//!
//! What the handler publishes by its [`Outbox`] is written just before the seal, and a relay publishes it after the commit.
//!
//! # Running
//!
//! [`run`] drives every handler that is linked into the program, with settings from the environment and `inbox.toml`
//! ([`guide::configuration`]); [`Inbox::builder`] takes them from code, and can [`spawn`](InboxBuilder::spawn) the inbox beside a server or handle
//! [one message](Inbox::process_one) in a test. Handlers of other crates must be [linked](link!).
//!
//! # Watching
//!
//! Each message has a span, each handler metrics and a [health](InboxHandle::health) with reasons, which a program can serve
//! over HTTP: [`guide::telemetry`].
//!
//! # Going on
//!
//! The guide has a page for each question: what is [guaranteed](guide::guarantee) and what is not, when a message is
//! [acknowledged](guide::ack_strategies), by which id it is [deduplicated](guide::ids), what happens when a handler
//! [fails](guide::failing), how to [publish](guide::outbox) in its transaction, how to run [more processes](guide::scaling), how
//! to [test](guide::testing) a handler and a crash, and what is different for those who [come from Python](guide::from_python).
//! What a file of handlers needs is in the [`prelude`].
//!
//! # Features
//!
//! `macros` (default) has the attribute. Brokers: `embedded`, `nats`, `kafka` (`kafka-ssl` for TLS and SASL). Databases:
//! `sqlite`, `postgres` (`postgres-tls` for TLS). `anyhow` and `eyre` let [`HandlerError`] see the chain inside these errors. `metrics`, `otel` and `http`
//! show what goes on. `testing` has the test kit. Features are additive.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod admin;
mod backoff;
mod broker;
mod claim;
pub mod config;
mod consumer;
mod contain;
mod counters;
mod dead_letters;
mod delivery;
mod error;
mod error_chain;
mod excerpt;
mod extract;
mod failpoint;
mod file;
// Its programs need these features, and so do the documentation tests that compile them.
#[cfg(any(
    all(doc, not(doctest)),
    all(feature = "macros", feature = "sqlite", feature = "testing")
))]
pub mod guide;
mod handler;
mod health;
#[cfg(feature = "http")]
pub mod http;
mod identity;
mod inbox;
mod invocation;
mod message_id;
mod outbox;
mod outbox_mode;
mod outbox_wake;
mod outbox_watch;
mod outcome;
mod outgoing;
mod pipeline;
mod registry;
mod services;
mod shutdown;
mod stderr;
pub mod store;
pub mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;
mod url;
mod warnings;

/// What a file of handlers needs: the attribute, the arguments, the errors, and the connections of the enabled databases.
///
/// ```
/// # #[cfg(all(feature = "macros", feature = "sqlite"))]
/// # mod example {
/// use inbox_runtime::prelude::*;
///
/// #[inbox_handler(group = "billing", subject = "order.created")]
/// async fn create_invoice(tx: &mut SqliteConnection, Json(order_id): Json<String>) -> Result<(), HandlerError> {
///     sqlx::query("INSERT INTO invoices (order_id) VALUES ($1)").bind(order_id).execute(&mut *tx).await?;
///     Ok(())
/// }
/// # }
/// ```
pub mod prelude {
    #[cfg(feature = "postgres")]
    pub use sqlx::PgConnection;
    #[cfg(feature = "sqlite")]
    pub use sqlx::SqliteConnection;

    #[cfg(feature = "macros")]
    pub use crate::inbox_handler;
    pub use crate::{
        Bytes, Handled, HandlerError, Header, HeaderName, Headers, Json, Message, Meta, Outbox, State, sqlx,
    };
}

pub use bytes::Bytes;
/// Makes a handler of a plain `async fn`: the subscription, the transaction, the claim and the acknowledgement around it.
///
/// The function stays as it is and can be called by a unit test.
///
/// ```
/// # #[cfg(all(feature = "embedded", feature = "sqlite"))]
/// # mod example {
/// use inbox_runtime::{Bytes, HandlerError, Meta, inbox_handler, sqlx::SqliteConnection};
///
/// #[inbox_handler(group = "archive", subject = "document.>", timeout = "30s", max_attempts = 5, backoff = "500ms..1m")]
/// async fn store(tx: &mut SqliteConnection, meta: Meta, body: Bytes) -> Result<(), HandlerError> {
///     inbox_runtime::sqlx::query("INSERT INTO documents (subject, body) VALUES ($1, $2)")
///         .bind(meta.subject())
///         .bind(&body[..])
///         .execute(&mut *tx)
///         .await?;
///     Ok(())
/// }
/// # }
/// ```
#[cfg(feature = "macros")]
pub use inbox_macros::inbox_handler;
pub use sqlx;

pub use backoff::Backoff;
#[cfg(feature = "embedded")]
pub use broker::embedded::{self, Embedded};
#[cfg(feature = "kafka")]
pub use broker::kafka::{self, Kafka};
#[cfg(feature = "nats")]
pub use broker::nats::{self, Nats};
pub use broker::{Broker, BrokerError, Lease, Published, Source, SourceStatus, Subscription};
pub use claim::{claim, migrate};
pub use counters::Report;
pub use dead_letters::{DeadLetterQuery, DeadLetters, dead_letters};
pub use delivery::{Delivery, Headers, Message};
pub use error::{BlockedHandlers, Error, StartErrors};
pub use extract::{
    DeliveryContext, Envelope, FromDelivery, Header, HeaderName, Json, Meta, MetaBuilder, Outbox, Rejection, State,
    States, VersionedEnvelope,
};
pub use handler::{AckStrategy, HandlerMeta, IdSource, StartPosition};
pub use health::{HandlerHealth, Health, HealthHandle};
pub use inbox::{Inbox, InboxBuilder, InboxHandle};
pub use outbox::{OutboxAdmin, cancel, outbox, publish};
pub use outbox_mode::OutboxMode;
pub use outcome::{Handled, HandlerError, IntoOutcome, Outcome};
pub use outgoing::OutboxMessage;
pub use store::{
    ClaimError, Claimed, ConnectError, DeadLetter, DeadLetterReason, DeadLetterStatus, Fingerprint, InboxConnection,
    IntoStore, MigrateError, MigrateMode, ParkedMessage, PublishError, StoreError, StoreSettings,
};

/// Runs every handler that is linked into the program, until SIGTERM or SIGINT.
///
/// Everything comes from the environment: `DATABASE_URL`, `INBOX_BROKER_URL`, and the settings that have a default. The
/// first signal drains: running handlers finish and are settled, everything else is released at once. The second stops
/// now. For anything else there is [`Inbox::builder`], of which this is a few lines.
///
/// A database that can't be used yet is waited for, unready, as [`InboxBuilder::build`] says; a signal ends that wait at once.
///
/// A program that has installed no `tracing` subscriber gets one that prints warnings and errors to the standard error stream
/// (another level by `RUST_LOG`, as in `info`), so that nothing goes wrong in silence.
///
/// It returns in time even if a handler blocks its thread ([`Error::Blocked`]). A runtime that is dropped, at the end of a
/// `main` under `#[tokio::main]` too, then waits for that thread; a program that must not wait ends with
/// [`std::process::exit`].
///
/// # Errors
///
/// [`Error::Start`] before anything is consumed, with every problem and the place that can mend it; otherwise as
/// [`Inbox::run`].
///
/// # Examples
///
/// ```no_run
/// #[tokio::main]
/// async fn main() -> Result<(), inbox_runtime::Error> {
///     inbox_runtime::run().await
/// }
/// ```
pub async fn run() -> Result<(), Error> {
    stderr::print_unless_subscribed();
    let (first, second) = shutdown::signals()?;
    Inbox::builder().shutdown(first).abort(second).run().await?;
    Ok(())
}

/// Links crates that have handlers. A crate that no source file names is not linked, however it is listed in
/// `Cargo.toml`, and its handlers are not there.
///
/// ```
/// # mod outer { pub extern crate core as billing_handlers; pub extern crate std as shipping_handlers; }
/// # use outer::{billing_handlers, shipping_handlers};
/// inbox_runtime::link!(billing_handlers, shipping_handlers);
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! link {
    ($($handlers:ident),+ $(,)?) => {
        $(use $handlers as _;)+
    };
}

/// Not public API: what the expansion of `#[inbox_handler]` names, and nothing else names.
#[doc(hidden)]
pub mod __private {
    pub use core::{concat, module_path, option::Option, result::Result};
    pub use std::boxed::Box;

    pub use futures_util::future::BoxFuture;
    pub use inventory::submit;

    pub use crate::{
        extract::{Arg, DeliveryContext, Rejection, arg, arg_without_tx},
        handler::{AckStrategy, HandlerMeta, IdSource, StartPosition},
        invocation::{Invocation, outcome, run},
        registry::{Decode, Registration},
        store::{StoreOf, detached::Detached},
    };

    // Mentioned by the traits behind the types above.
    #[cfg(feature = "postgres")]
    pub use crate::store::postgres::{PostgresSession, PostgresStore};
    #[cfg(feature = "sqlite")]
    pub use crate::store::sqlite::{SqliteSession, SqliteStore};
    pub use crate::{extract::ArgCheck, invocation::HandlerFuture};
}
