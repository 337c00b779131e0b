//! The outbox by hand: publishing in a transaction of one's own, cancelling what is delayed, and what operators do with messages that
//! the broker has refused.

use std::sync::Arc;

use crate::{
    dead_letters::records,
    outbox_wake,
    outgoing::{OutboxMessage, new_id, own_id, prepare},
    store::{InboxConnection, IntoStore, ParkedMessage, PublishError, Records, Store, StoreError},
    telemetry,
};

/// Publishes a message in the transaction that is open on `conn`: it is on the broker at least once if and only if that
/// transaction commits. Returns the message's id, which is its header `message_id`, or a new UUID of version 7.
///
/// It is written at once, as a row of `inbox_outbox`, and a program that relays (any inbox on this database, unless its
/// [`OutboxMode`](crate::OutboxMode) says otherwise) publishes it after the commit. The tables must be there: call [`migrate`](crate::migrate) once.
///
/// The order of messages of one subject and key is that in which they are written here, among transactions that exclude one
/// another: publish after the row that they tell of is locked or written. Inside a handler prefer [`Outbox`](crate::Outbox), which
/// sees to that, and whose ids are the same when the handler runs again.
///
/// # Errors
///
/// [`PublishError::Invalid`] for a message that no broker would take, [`PublishError::NoTransaction`] when `conn` has no open
/// transaction of sqlx's, [`PublishError::Database`] otherwise.
///
/// # Cancel safety
///
/// Dropped, the message may have been written or not; roll the transaction back.
///
/// # Examples
///
/// ```
/// # #[cfg(feature = "sqlite")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use inbox_runtime::{Message, sqlx::{self, SqlitePool}};
///
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("sqlite://{}?mode=rwc", dir.path().join("app.db").display());
/// let pool = SqlitePool::connect(&url).await?;
/// inbox_runtime::migrate(&pool).await?;
///
/// let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
/// // … the order, through the same `tx` …
/// let message = Message::json("order.created", &"o1")?.key("o1");
/// inbox_runtime::publish(&mut *tx, message).await?;
/// tx.commit().await?;
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "sqlite"))]
/// # fn main() {}
/// ```
pub async fn publish<C: InboxConnection>(
    conn: &mut C,
    message: impl Into<OutboxMessage>,
) -> Result<String, PublishError> {
    let outgoing = message.into();
    let id = own_id(&outgoing.message).map_err(PublishError::Invalid)?;
    let mut outgoing = prepare(outgoing, id.unwrap_or_else(new_id), None).map_err(PublishError::Invalid)?;
    telemetry::inject(&mut outgoing.message.headers);
    C::Store::publish_on(conn, &outgoing).await?;
    Ok(outgoing.message_id)
}

/// Takes back a delayed message, in the transaction that is open on `conn`: it is not published if that transaction commits before
/// the message is due. `message_id` is what [`publish`] or [`Outbox::publish`](crate::Outbox::publish) has returned. Returns whether
/// there was one that still waited.
///
/// # Errors
///
/// [`PublishError::NoTransaction`] when `conn` has no open transaction of sqlx's, [`PublishError::Database`] otherwise.
///
/// # Examples
///
/// ```
/// # #[cfg(feature = "sqlite")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use inbox_runtime::{Message, sqlx::{self, SqlitePool}};
///
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("sqlite://{}?mode=rwc", dir.path().join("app.db").display());
/// let pool = SqlitePool::connect(&url).await?;
/// inbox_runtime::migrate(&pool).await?;
///
/// let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
/// let reminder = Message::new("order.reminder", "o1").delay(Duration::from_secs(86_400));
/// let id = inbox_runtime::publish(&mut *tx, reminder).await?;
/// assert!(inbox_runtime::cancel(&mut *tx, &id).await?);
/// tx.commit().await?;
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "sqlite"))]
/// # fn main() {}
/// ```
pub async fn cancel<C: InboxConnection>(conn: &mut C, message_id: &str) -> Result<bool, PublishError> {
    Ok(C::Store::cancel_on(conn, message_id).await? > 0)
}

/// The outbox of the database of that pool: what waits there, and what the broker has refused.
///
/// ```
/// # #[cfg(feature = "sqlite")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use inbox_runtime::sqlx::SqlitePool;
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("sqlite://{}?mode=rwc", dir.path().join("app.db").display());
/// let pool = SqlitePool::connect(&url).await?;
/// inbox_runtime::migrate(&pool).await?;
///
/// let outbox = inbox_runtime::outbox(&pool);
/// for parked in outbox.parked(0, 100).await? {
///     println!("{} for {}: {}", parked.message_id, parked.subject, parked.error);
///     outbox.replay(parked.id).await?;
/// }
/// assert_eq!(outbox.pending(1_000).await?, 0);
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "sqlite"))]
/// # fn main() {}
/// ```
pub fn outbox<P: IntoStore + Clone>(pool: &P) -> OutboxAdmin {
    OutboxAdmin(records(pool))
}

/// The outbox of a database, for operators. Made by [`outbox`], and by [`admin::Database`](crate::admin::Database).
#[derive(Clone, Debug)]
pub struct OutboxAdmin(Arc<dyn Records>);

impl OutboxAdmin {
    pub(crate) fn new(records: Arc<dyn Records>) -> Self {
        Self(records)
    }

    /// How many messages wait to be published, those that are delayed aside; counted up to `max`.
    ///
    /// # Errors
    ///
    /// When the database can't be asked.
    pub async fn pending(&self, max: u64) -> Result<u64, StoreError> {
        self.0.count_outbox(max).await
    }

    /// The messages that the broker has refused for good, those with numbers above `after`, at most `limit` of them.
    ///
    /// # Errors
    ///
    /// When the database can't be asked.
    pub async fn parked(&self, after: i64, limit: u32) -> Result<Vec<ParkedMessage>, StoreError> {
        self.0.parked(after, limit).await
    }

    /// Lets a parked message be published again, behind what waits now. Returns whether it was there.
    ///
    /// # Errors
    ///
    /// When the database can't be written to.
    pub async fn replay(&self, id: i64) -> Result<bool, StoreError> {
        let replayed = self.0.replay_parked(id).await?;
        if replayed {
            outbox_wake::wake();
        }
        Ok(replayed)
    }

    /// Deletes a parked message. Returns whether it was there.
    ///
    /// # Errors
    ///
    /// When the database can't be written to.
    pub async fn discard(&self, id: i64) -> Result<bool, StoreError> {
        self.0.discard_parked(id).await
    }
}
