//! Publishing: messages become rows in one transaction.

use sqlx::{Connection, SqliteConnection};

use inbox_rules::subject_rules;

use super::{db::Db, message, shared::EmbeddedShared};
use crate::{
    broker::{BrokerError, Published},
    delivery::Message,
};

/// A message that can be stored.
pub(super) struct Row {
    message: Message,
    headers: Vec<u8>,
}

impl Row {
    /// Refuses a message that can't be stored.
    pub(super) fn of(message: Message) -> Result<Self, BrokerError> {
        let refused = |message| BrokerError::Refused { message, source: None };
        subject_rules::check_publish_subject(&message.subject).map_err(refused)?;
        let headers = serde_json::to_vec(&message.headers)
            .map_err(|error| BrokerError::refused("the headers can't be stored", error))?;
        Ok(Self { message, headers })
    }
}

/// Publishes messages; returns what came of each. Those that can be stored are stored in one transaction, or none is.
pub(super) async fn publish_all(
    shared: &EmbeddedShared,
    db: &Db,
    messages: Vec<Message>,
) -> Vec<Result<Published, BrokerError>> {
    let (mut rows, mut refusals) = (Vec::new(), Vec::new());
    for message in messages {
        match Row::of(message) {
            Ok(row) => {
                rows.push(row);
                refusals.push(None);
            }
            Err(refused) => refusals.push(Some(refused)),
        }
    }
    let (published, failed) = match publish(shared, db, rows).await {
        Ok(published) => (published, None),
        Err(error) => (Vec::new(), Some(error)),
    };
    let mut published = published.into_iter();
    let answer = |refused: Option<BrokerError>| match (refused, &failed) {
        (Some(refused), _) => Err(refused),
        (None, Some(error)) => Err(error.copied()),
        (None, None) => Ok(published.next().expect("a position for each row")),
    };
    refusals.into_iter().map(answer).collect()
}

/// Stores messages in their order, all or none; returns when they are synced to the disk.
pub(super) async fn publish(shared: &EmbeddedShared, db: &Db, rows: Vec<Row>) -> Result<Vec<Published>, BrokerError> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let mut connection = db.durable_writer().await?;
    let now = shared.clock.now();
    let inserted = insert_all(&mut connection, &rows, now).await;
    let inserted = connection.finish("publish to", inserted)?;
    // Fails if it was written to an unlinked file.
    db.check()?;
    for row in &rows {
        shared.wakeups.wake_published(&row.message.subject);
    }
    let position = |seq| Published::new(message::position(&db.instance, seq));
    Ok(inserted.into_iter().map(position).collect())
}

/// Returns the sequence numbers.
async fn insert_all(connection: &mut SqliteConnection, rows: &[Row], now: i64) -> Result<Vec<i64>, sqlx::Error> {
    // A single statement is a transaction.
    if let [row] = rows {
        return Ok(vec![insert(connection, row, now).await?]);
    }
    let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
    let mut inserted = Vec::with_capacity(rows.len());
    for row in rows {
        inserted.push(insert(&mut tx, row, now).await?);
    }
    tx.commit().await?;
    Ok(inserted)
}

async fn insert(connection: &mut SqliteConnection, row: &Row, now: i64) -> Result<i64, sqlx::Error> {
    let Row { message, headers } = row;
    let inserted = sqlx::query("INSERT INTO messages (subject, published_at, headers, payload) VALUES (?, ?, ?, ?)")
        .bind(&message.subject)
        .bind(now)
        .bind(headers)
        .bind(message.payload.as_deref())
        .execute(connection)
        .await?;
    Ok(inserted.last_insert_rowid())
}
