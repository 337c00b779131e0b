//! Arguments of one's own: a payload in another format, a payload that is checked, and a header with a meaning.
//!
//! Run with
//!
//! ```text
//! cargo run -p inbox-examples --example custom_extractor
//! ```
//!
//! What an extractor refuses goes to the dead letters with its reason: no further delivery can mend it.

use std::collections::HashMap;

use inbox_runtime::{
    DeadLetterQuery, DeliveryContext, Embedded, FromDelivery, Inbox, Json, Message, Rejection, dead_letters,
    inbox_handler,
    sqlx::{self, SqliteConnection, SqlitePool},
};
use serde::de::DeserializeOwned;

/// A payload that may be wrong though it can be read.
trait Check {
    fn check(&self) -> Result<(), String>;
}

/// JSON that was read and checked.
struct Checked<T>(T);

impl<T: Check + DeserializeOwned + Send + 'static> FromDelivery for Checked<T> {
    fn from_delivery(context: &DeliveryContext<'_>) -> Result<Self, Rejection> {
        let Json(value) = Json::<T>::from_delivery(context)?;
        value.check().map_err(Rejection::new)?;
        Ok(Self(value))
    }
}

/// A payload in the format of an older system: `key=value`, separated by `;`.
struct Legacy(HashMap<String, String>);

impl FromDelivery for Legacy {
    fn from_delivery(context: &DeliveryContext<'_>) -> Result<Self, Rejection> {
        let payload = context.delivery().payload.as_deref().unwrap_or_default();
        let text =
            std::str::from_utf8(payload).map_err(|error| Rejection::with_source("the payload is not text", error))?;
        let pair = |pair: &str| {
            let (key, value) = pair
                .split_once('=')
                .ok_or_else(|| Rejection::new(format!("`{pair}` is not `key=value`")))?;
            Ok((key.to_owned(), value.to_owned()))
        };
        text.split(';').map(pair).collect::<Result<_, _>>().map(Self)
    }
}

/// Whose order it is, by a header.
struct Tenant(String);

impl FromDelivery for Tenant {
    fn from_delivery(context: &DeliveryContext<'_>) -> Result<Self, Rejection> {
        match context.delivery().headers.get("tenant") {
            Some(name) => Ok(Self(String::from_utf8_lossy(name).into_owned())),
            None => Err(Rejection::new("the header `tenant` is missing")),
        }
    }
}

#[derive(serde::Deserialize)]
struct Payment {
    order_id: String,
    cents: i64,
}

impl Check for Payment {
    fn check(&self) -> Result<(), String> {
        if self.cents > 0 {
            Ok(())
        } else {
            Err(format!("a payment of {} cents is none", self.cents))
        }
    }
}

#[inbox_handler(group = "ledger", subject = "payment.made")]
async fn book(
    tx: &mut SqliteConnection,
    Tenant(tenant): Tenant,
    Checked(payment): Checked<Payment>,
) -> Result<(), sqlx::Error> {
    insert(tx, &tenant, &payment.order_id, payment.cents).await
}

#[inbox_handler(group = "ledger", subject = "legacy.payment")]
async fn book_legacy(
    tx: &mut SqliteConnection,
    Tenant(tenant): Tenant,
    Legacy(fields): Legacy,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let field = |name: &str| fields.get(name).ok_or_else(|| format!("there is no `{name}`"));
    insert(tx, &tenant, field("order")?, field("cents")?.parse()?).await?;
    Ok(())
}

async fn insert(tx: &mut SqliteConnection, tenant: &str, order_id: &str, cents: i64) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO bookings (tenant, order_id, cents) VALUES ($1, $2, $3)")
        .bind(tenant)
        .bind(order_id)
        .bind(cents)
        .execute(&mut *tx)
        .await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let pool = SqlitePool::connect(&format!("sqlite://{}?mode=rwc", folder.path().join("app.db").display())).await?;
    sqlx::raw_sql("CREATE TABLE bookings (tenant TEXT, order_id TEXT, cents INTEGER)")
        .execute(&pool)
        .await?;

    let broker = Embedded::memory();
    let payment = |payload: &'static str| Message::new("payment.made", payload);
    for message in [
        payment(r#"{"order_id": "o1", "cents": 4200}"#)
            .id("1")
            .header("tenant", "north"),
        payment(r#"{"order_id": "o2", "cents": 0}"#)
            .id("2")
            .header("tenant", "north"),
        payment(r#"{"order_id": "o3", "cents": "many"}"#)
            .id("3")
            .header("tenant", "north"),
        payment(r#"{"order_id": "o4", "cents": 100}"#).id("4"),
        Message::new("legacy.payment", "order=o5;cents=700")
            .id("5")
            .header("tenant", "south"),
    ] {
        broker.publish(message).await?;
    }

    let mut inbox = Inbox::builder().store(pool.clone()).broker(broker).build().await?;
    println!("{}", inbox.run_until_idle().await?);
    let bookings: Vec<(String, String, i64)> =
        sqlx::query_as("SELECT tenant, order_id, cents FROM bookings ORDER BY order_id")
            .fetch_all(&pool)
            .await?;
    for (tenant, order_id, cents) in &bookings {
        println!("booked: {tenant} {order_id} {cents}");
    }
    let letters = dead_letters(&pool).list(DeadLetterQuery::default()).await?;
    for letter in &letters {
        let id = letter.message_id.as_deref().unwrap_or_default();
        println!("dead letter {id}: {}", letter.error);
    }
    if (bookings.len(), letters.len()) == (2, 3) {
        Ok(())
    } else {
        Err("two payments should be booked and three refused".into())
    }
}
