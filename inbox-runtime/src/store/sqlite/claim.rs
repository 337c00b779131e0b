//! The claim: inserts a message's inbox row in an open transaction.

use sqlx::{Row, SqliteConnection};

use crate::store::{Claim, Claimed, Fingerprint, claim::ClaimSet};

/// Inserts the inbox row, or returns the fingerprint of the one that exists.
pub(super) async fn insert(conn: &mut SqliteConnection, claim: &Claim<'_>) -> sqlx::Result<Claimed> {
    let inserted = sqlx::query(
        "INSERT INTO inbox_events (consumer_group, message_id, fingerprint) VALUES ($1, $2, $3) \
         ON CONFLICT (consumer_group, message_id) DO NOTHING",
    )
    .bind(claim.group)
    .bind(claim.message_id)
    .bind(claim.fingerprint.to_i64())
    .execute(&mut *conn)
    .await?;
    if inserted.rows_affected() == 1 {
        return Ok(Claimed::Fresh);
    }
    let row = sqlx::query("SELECT fingerprint FROM inbox_events WHERE consumer_group = $1 AND message_id = $2")
        .bind(claim.group)
        .bind(claim.message_id)
        .fetch_one(conn)
        .await?;
    Ok(Claimed::Duplicate(Fingerprint::from_i64(row.try_get(0)?)))
}

/// Claims a set, one by one: there is no round trip to save.
pub(super) async fn insert_all(conn: &mut SqliteConnection, claims: &[Claim<'_>]) -> sqlx::Result<Vec<Claimed>> {
    let mut set = ClaimSet::new(claims);
    let mut answers = Vec::with_capacity(claims.len());
    for claim in set.open() {
        answers.push(Some(insert(conn, claim).await?));
    }
    set.answer(answers);
    Ok(set.into_answers())
}
