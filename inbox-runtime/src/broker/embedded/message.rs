//! Stored messages: their positions, and the delivery in a row.

use bytes::Bytes;
use sqlx::{Row, sqlite::SqliteRow};

use super::clock;
use crate::delivery::Delivery;

/// The position of a message.
pub(super) fn position(instance: &str, seq: i64) -> String {
    format!("embedded:{instance}:{seq}")
}

/// The delivery in a row with the columns of a message and `delivery_count`.
pub(super) fn delivery(instance: &str, row: &SqliteRow) -> Result<Delivery, sqlx::Error> {
    let count: i64 = row.try_get("delivery_count")?;
    let headers: &[u8] = row.try_get("headers")?;
    let payload: Option<Vec<u8>> = row.try_get("payload")?;
    let subject: String = row.try_get("subject")?;
    let mut delivery = Delivery::new(subject, position(instance, row.try_get("seq")?));
    delivery.headers = serde_json::from_slice(headers).map_err(|error| sqlx::Error::ColumnDecode {
        index: "headers".to_owned(),
        source: Box::new(error),
    })?;
    delivery.payload = payload.map(Bytes::from);
    delivery.delivery_count = u64::try_from(count).ok();
    delivery.redelivered = count > 1;
    delivery.published_at = clock::time(row.try_get("published_at")?);
    Ok(delivery)
}
