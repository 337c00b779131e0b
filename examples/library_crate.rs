//! Handlers in a library crate (`billing_handlers`), and a program that links it and has none of its own.
//!
//! Run with
//!
//! ```text
//! cargo run -p inbox-examples --example library_crate
//! ```
//!
//! A crate that no source file names is not linked, however it is listed in `Cargo.toml`; `link!` names it. `expect` makes
//! it a start error when a handler is missing all the same.

use inbox_runtime::{
    Embedded, Inbox, Message,
    sqlx::{self, SqlitePool},
};

inbox_runtime::link!(billing_handlers);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let pool = SqlitePool::connect(&format!("sqlite://{}?mode=rwc", folder.path().join("app.db").display())).await?;
    sqlx::raw_sql("CREATE TABLE invoices (order_id TEXT, amount_cents INTEGER); CREATE TABLE accounts (customer TEXT)")
        .execute(&pool)
        .await?;
    let broker = Embedded::memory();
    broker
        .publish(Message::new("order.created", r#"{"order_id": "o1", "amount_cents": 4200}"#).id("evt-1"))
        .await?;
    broker
        .publish(Message::new("customer.created", r#""c1""#).id("evt-2"))
        .await?;

    let mut inbox = Inbox::builder()
        .store(pool.clone())
        .broker(broker)
        .expect("billing", "order.created")
        .expect("billing", "customer.created")
        .build()
        .await?;
    for handler in inbox.handlers() {
        println!("{} takes {} for {}", handler.name, handler.subject, handler.group);
    }
    println!("{}", inbox.run_until_idle().await?);
    let counts: (i64, i64) = sqlx::query_as("SELECT (SELECT count(*) FROM invoices), (SELECT count(*) FROM accounts)")
        .fetch_one(&pool)
        .await?;
    println!("invoices={} accounts={}", counts.0, counts.1);
    if counts == (1, 1) {
        Ok(())
    } else {
        Err("every effect should exist once".into())
    }
}
