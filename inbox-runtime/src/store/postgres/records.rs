//! Attempts and dead letters on PostgreSQL.

use std::sync::Arc;

use sqlx::postgres::PgRow;
use tokio::sync::OnceCell;

use super::{
    PostgresStore, Writer,
    errors::{is_of_the_message, own as trouble},
    statements::first,
    unavailable,
};
use crate::store::texts::Charset;

/// The tables beside the inbox.
#[derive(Clone, Debug)]
pub(super) struct PostgresRecords {
    store: PostgresStore,
    /// What the database's encoding has, once it was asked.
    charset: Arc<OnceCell<Charset>>,
}

impl PostgresRecords {
    pub(super) fn new(store: PostgresStore) -> Self {
        Self {
            store,
            charset: Arc::default(),
        }
    }

    async fn charset(&self) -> Result<Charset, StoreError> {
        let asked = self.charset.get_or_try_init(async || {
            let mut conn = self.store.acquire().await?;
            let row = first(&mut conn, "SHOW server_encoding".to_owned())
                .await
                .map_err(trouble)?;
            let encoding: String = row.try_get(0).map_err(unavailable)?;
            Ok(Charset::of(&encoding))
        });
        asked.await.copied()
    }
}

crate::store::tables::records! {
    PostgresRecords, PgRow,
    now: "clock_timestamp()",
    later: ["clock_timestamp() + ", " * interval '1 millisecond'"],
    time: ["to_timestamp(", "::float8 / 1000)"],
    millis: ["(extract(epoch FROM ", ") * 1000)::bigint"],
}
