//! The experiments, and what is known to come out of them.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant, SystemTime},
};

use inbox_runtime::{Broker, Inbox, InboxBuilder, Message, OutboxMode, Outcome};

use super::{Database, INVOICES, NO_OUTBOX, ORDERS, Order, Result, watched::Watched};

/// What is measured, line by line, and what is known to come out.
const LINES: [&str; 11] = [
    // Without an outbox: one of two messages too few, or one order too few.
    "commit, then publish, crash between: orders=1 messages=0",
    "publish, then commit, commit fails: orders=0 messages=1",
    "order and message in one transaction, rolled back: orders=0 outbox=0 messages=0",
    "relay cycle 1, crash after the send: outbox=1 messages=1",
    "relay cycle 2, normal: outbox=0 messages=2 ids=1",
    "delivery 1: processed=True duplicate=False committed=True invoices=1",
    "delivery 2: processed=False duplicate=True committed=True invoices=1",
    "broker away, 3 relay cycles: pending=3 parked=0",
    "broker back, 1 relay cycle: pending=0 messages=3 invoices=3",
    "two messages without an id: ids=2 processed=2 invoices=2",
    "the next message, which the handler publishes: invoices=6 messages=6 mails=6",
];

/// How long a message may take from the broker.
const PATIENCE: Duration = Duration::from_secs(30);

/// The experiments, on one broker and one database.
pub(super) struct Lab<B, D> {
    broker: Watched<B>,
    database: D,
    /// How the ids of this run's orders begin.
    run: String,
    lines: Vec<String>,
}

impl<B: Broker + Clone, D: Database> Lab<B, D> {
    pub(super) fn new(database: D, broker: B) -> Result<Self> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        Ok(Self {
            broker: Watched::new(broker),
            database,
            run: format!("{}-", now.as_nanos()),
            lines: Vec::new(),
        })
    }

    pub(super) async fn measure(mut self) -> Result<()> {
        let mut billing = self.program(OutboxMode::Write, "pair-billing").build().await?;
        for version in billing.describe() {
            println!("{version}");
        }
        println!("--- an order and its message in one transaction, a relay, an inbox that writes the invoice ---");
        self.without_an_outbox().await?;
        self.rolled_back().await?;
        self.relay_that_dies(&mut billing).await?;
        self.broker_that_is_away(&mut billing).await?;
        self.without_ids(&mut billing).await?;
        self.next_message().await?;
        // Until the broker has everything that was acknowledged.
        billing.close().await;
        if self.lines == LINES {
            Ok(())
        } else {
            Err("a line is not what it should be".into())
        }
    }

    /// Two writes without a transaction around both.
    async fn without_an_outbox(&mut self) -> Result<()> {
        let order = self.order("crash");
        self.database.place(&order, None, true).await?;
        // The program dies here, before it publishes.
        let orders = self.orders(&order).await?;
        let messages = self.sent(NO_OUTBOX, &order).len();
        self.line(format!(
            "commit, then publish, crash between: orders={orders} messages={messages}"
        ));

        let order = self.order("failed");
        Broker::publish(&self.broker, order.to(NO_OUTBOX)?).await?;
        self.database.place(&order, None, false).await?;
        let orders = self.orders(&order).await?;
        let messages = self.sent(NO_OUTBOX, &order).len();
        self.line(format!(
            "publish, then commit, commit fails: orders={orders} messages={messages}"
        ));
        Ok(())
    }

    /// Both in one transaction, which is rolled back.
    async fn rolled_back(&mut self) -> Result<()> {
        let order = self.order("rolled-back");
        self.database.place(&order, Some(order.to(ORDERS)?), false).await?;
        let pending = self.pending().await?;
        self.relay().await?.process_one(Duration::ZERO).await?;
        let orders = self.orders(&order).await?;
        let messages = self.sent(ORDERS, &order).len();
        self.line(format!(
            "order and message in one transaction, rolled back: orders={orders} outbox={pending} messages={messages}"
        ));
        Ok(())
    }

    /// The broker has the message, and the relay dies before it hears of it. The next one sends the message again.
    async fn relay_that_dies(&mut self, billing: &mut Inbox) -> Result<()> {
        let order = self.order("copied");
        self.database.place(&order, Some(order.to(ORDERS)?), true).await?;
        let mut relay = self.relay().await?;
        self.broker.watch.is_mute.store(true, Ordering::SeqCst);
        tokio::select! {
            // Whatever the relay was doing is dropped, as by SIGKILL.
            () = self.broker.watch.unheard.notified() => drop(relay),
            relayed = relay.process_one(PATIENCE) => {
                return Err(format!("the relay was not cut off: {relayed:?}").into());
            }
        }
        let (pending, messages) = (self.pending().await?, self.sent(ORDERS, &order).len());
        self.line(format!(
            "relay cycle 1, crash after the send: outbox={pending} messages={messages}"
        ));

        let mut next = self.relay().await?;
        let began = Instant::now();
        // The database takes a moment to notice that the other one has died, and what it held is taken until then.
        while self.pending().await? > 0 && began.elapsed() < PATIENCE {
            next.process_one(Duration::ZERO).await?;
        }
        let sent = self.sent(ORDERS, &order);
        let mut ids: Vec<_> = sent.iter().map(|message| message.headers.get("message_id")).collect();
        ids.dedup();
        let (pending, messages, ids) = (self.pending().await?, sent.len(), ids.len());
        self.line(format!(
            "relay cycle 2, normal: outbox={pending} messages={messages} ids={ids}"
        ));

        for delivery in 1..=2 {
            let acked_before = billing.report().acked;
            let outcome = billing.process_one(PATIENCE).await?;
            let (processed, duplicate) = (Some(Outcome::Processed), Some(Outcome::Duplicate));
            let line = format!(
                "delivery {delivery}: processed={} duplicate={} committed={} invoices={}",
                python(outcome == processed),
                python(outcome == duplicate),
                python(billing.report().acked > acked_before),
                self.invoices(&order.order_id).await?,
            );
            self.line(line);
        }
        Ok(())
    }

    /// The relay looks three times while the broker can't be reached.
    async fn broker_that_is_away(&mut self, billing: &mut Inbox) -> Result<()> {
        let orders = ["away-1", "away-2", "away-3"].map(|name| self.order(name));
        for order in &orders {
            self.database.place(order, Some(order.to(ORDERS)?), true).await?;
        }
        self.broker.watch.is_away.store(true, Ordering::SeqCst);
        let mut relay = self.relay().await?;
        for _ in 0..3 {
            relay.process_one(Duration::ZERO).await?;
        }
        let parked = inbox_runtime::outbox(&self.database).parked(0, 100).await?.len();
        let pending = self.pending().await?;
        self.line(format!(
            "broker away, 3 relay cycles: pending={pending} parked={parked}"
        ));

        self.broker.watch.is_away.store(false, Ordering::SeqCst);
        relay.process_one(Duration::ZERO).await?;
        let pending = self.pending().await?;
        let all = self.order("away");
        let messages = self.sent(ORDERS, &all).len();
        for _ in 0..messages {
            billing.process_one(PATIENCE).await?;
        }
        let invoices = self.invoices(&all.order_id).await?;
        self.line(format!(
            "broker back, 1 relay cycle: pending={pending} messages={messages} invoices={invoices}"
        ));
        Ok(())
    }

    /// A producer that sends a message twice and gives it no id: each has that of its position in the broker.
    async fn without_ids(&mut self, billing: &mut Inbox) -> Result<()> {
        let order = self.order("no-id");
        let mut processed = 0;
        for _ in 0..2 {
            Broker::publish(&self.broker, order.to(ORDERS)?).await?;
            let outcome = billing.process_one(PATIENCE).await?;
            processed += u32::from(outcome == Some(Outcome::Processed));
        }
        let ids = "SELECT count(DISTINCT message_id) FROM pair_invoices WHERE order_id = $1";
        let ids = self.database.number(ids, &order.order_id).await?;
        let invoices = self.invoices(&order.order_id).await?;
        self.line(format!(
            "two messages without an id: ids={ids} processed={processed} invoices={invoices}"
        ));
        Ok(())
    }

    /// What the handler has published so far is relayed, and handled by its reader: one message for each invoice.
    async fn next_message(&mut self) -> Result<()> {
        let mut mail = self.program(OutboxMode::Both, "pair-mail").build().await?;
        let invoices = self.invoices(&self.run).await?;
        for _ in 0..invoices {
            mail.process_one(PATIENCE).await?;
        }
        mail.close().await;
        let messages = self.broker.watch.sent(INVOICES, &self.run).len();
        let mails = "SELECT count(*) FROM pair_mails WHERE order_id LIKE $1 || '%'";
        let mails = self.database.number(mails, &self.run).await?;
        self.line(format!(
            "the next message, which the handler publishes: invoices={invoices} messages={messages} mails={mails}"
        ));
        Ok(())
    }

    /// The program with the handler of that group.
    fn program(&self, mode: OutboxMode, group: &str) -> InboxBuilder {
        let of_this_database = |name: &str| name.split("::").any(|part| part == D::HANDLERS);
        self.with(mode)
            .groups([group])
            .select(move |meta| of_this_database(meta.name))
    }

    /// A program that relays and does nothing else. Each look for a message is one cycle of its relay.
    async fn relay(&self) -> Result<Inbox> {
        Ok(self.with(OutboxMode::Relay).select(|_| false).build().await?)
    }

    fn with(&self, mode: OutboxMode) -> InboxBuilder {
        let builder = Inbox::builder().store(self.database.clone());
        builder.broker(self.broker.clone()).outbox(mode)
    }

    /// An order that no other run has.
    fn order(&self, name: &str) -> Order {
        let order_id = format!("{}{name}", self.run);
        Order { order_id }
    }

    async fn orders(&self, order: &Order) -> Result<i64> {
        let orders = "SELECT count(*) FROM pair_orders WHERE order_id = $1";
        self.database.number(orders, &order.order_id).await
    }

    /// The invoices of the orders whose ids begin so.
    async fn invoices(&self, order_id: &str) -> Result<i64> {
        let invoices = "SELECT count(*) FROM pair_invoices WHERE order_id LIKE $1 || '%'";
        self.database.number(invoices, order_id).await
    }

    /// How many messages about orders wait in the outbox.
    async fn pending(&self) -> Result<i64> {
        let pending = "SELECT count(*) FROM inbox_outbox WHERE subject = $1";
        self.database.number(pending, ORDERS).await
    }

    fn sent(&self, subject: &str, order: &Order) -> Vec<Message> {
        self.broker.watch.sent(subject, &order.order_id)
    }

    fn line(&mut self, line: String) {
        println!("{line}");
        self.lines.push(line);
    }
}

/// A boolean as the original measurement printed it.
fn python(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}
