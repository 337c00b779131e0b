//! NATS JetStream for tests: each test has an account on a shared server, or a server of its own.

use std::{fmt::Write as _, time::Duration};

use inbox_runtime::{Message, Nats};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{JetStream, Settled, TestBroker};
use crate::{
    servers::nats::{Nats as Server, NatsCluster},
    world::eventually,
};

/// How many tests share a server.
const ACCOUNTS: u32 = 16;
/// The stream of each test.
const STREAM: &str = "TEST";
/// The stream's duplicate window.
const WINDOW: Duration = Duration::from_millis(100);
/// The subjects of the stream.
const SUBJECTS: [&str; 12] = [
    "order.>",
    "invoice.>",
    "orders.>",
    "users.>",
    "p.>",
    "raw.>",
    "all.>",
    "instrument.>",
    "cfg.>",
    "twin.>",
    "generated.>",
    "const.>",
];

/// An account for one test on the servers that the tests of a process share. A server needs long to set up an account,
/// so there are no more servers than are needed.
fn account() -> JetStream {
    static SHARED: Mutex<(Vec<Server>, u32)> = Mutex::new((Vec::new(), ACCOUNTS));
    let mut shared = SHARED.lock();
    if shared.1 == ACCOUNTS {
        let mut config = "accounts {\n".to_owned();
        for number in 0..ACCOUNTS {
            let user = format!("{{user: t{number}, password: t{number}}}");
            let _ = writeln!(config, "T{number} {{ jetstream: enabled, users: [{user}] }}");
        }
        config.push('}');
        let server = Server::start_with(&config).expect("a NATS server");
        *shared = (std::mem::take(&mut shared.0), 0);
        shared.0.push(server);
    }
    let user = format!("t{}", shared.1);
    shared.1 += 1;
    let server = shared.0.last().expect("it was started");
    JetStream::of(&[server.port()], Some(user))
}

/// A stream on JetStream.
#[derive(Clone, Debug)]
pub struct NatsJetStream {
    account: JetStream,
    broker: Nats,
}

impl NatsJetStream {
    /// The stream of the tests on that server.
    pub async fn on(server: &Server) -> Self {
        Self::of(JetStream::on(server)).await
    }

    /// The stream of the tests with three replicas and more configuration.
    ///
    /// # Panics
    ///
    /// When the cluster doesn't create it within a minute.
    pub async fn on_cluster(cluster: &NatsCluster, more: Value) -> Self {
        let account = JetStream::on_cluster(cluster);
        let mut config = json!({ "name": STREAM, "subjects": SUBJECTS, "storage": "file", "num_replicas": 3 });
        if let (Value::Object(config), Value::Object(more)) = (&mut config, more) {
            config.extend(more);
        }
        // A new cluster may not know all of its servers yet.
        eventually("a stream with three replicas", || async {
            let made = account.api(&format!("STREAM.CREATE.{STREAM}"), config.clone()).await;
            made["config"].is_object()
        })
        .await;
        Self {
            broker: Nats::new(&account.url()).expect("a URL"),
            account,
        }
    }

    /// The stream of the tests in that account.
    pub async fn of(account: JetStream) -> Self {
        account
            .make_stream(
                STREAM,
                &SUBJECTS,
                json!({ "duplicate_window": WINDOW.as_nanos() as u64 }),
            )
            .await;
        Self {
            broker: Nats::new(&account.url()).expect("a URL"),
            account,
        }
    }

    /// The unsettled messages of a group in that stream.
    pub async fn settled_on(&self, stream: &str, group: &str, subject: &str) -> Option<Settled> {
        let mut info = self.account.durable(stream, group, subject).await?;
        if info["delivered"]["consumer_seq"] == 0 {
            // A new consumer is visible before its messages are counted.
            tokio::time::sleep(Duration::from_millis(50)).await;
            info = self.account.durable(stream, group, subject).await?;
        }
        Some(Settled {
            waiting: info["num_pending"].as_u64()?,
            unacked: info["num_ack_pending"].as_u64()?,
        })
    }

    /// Its account.
    #[must_use]
    pub const fn account(&self) -> &JetStream {
        &self.account
    }
}

impl TestBroker for NatsJetStream {
    type Broker = Nats;

    const NULLS: bool = false;
    const TRIMS: bool = true;
    const LONGEST_HEADER: usize = 65_000;

    async fn fresh() -> Self {
        Self::of(tokio::task::spawn_blocking(account).await.expect("an account")).await
    }

    fn connect(&self) -> Nats {
        self.broker.clone()
    }

    /// Publishes until the message is stored: one that the server deduplicates is published again after the window.
    async fn publish(&self, message: Message) {
        while self.account.publish(&message).await["duplicate"] == true {
            tokio::time::sleep(WINDOW / 2).await;
        }
    }

    async fn settled(&self, group: &str, subject: &str) -> Option<Settled> {
        self.settled_on(STREAM, group, subject).await
    }

    fn url(&self) -> Option<String> {
        Some(self.account.url())
    }

    /// A server has no test clock. Naks every pending message instead, which redelivers it at once, as an expired lease
    /// or back-off does.
    async fn pass(&self, _time: Duration) {
        let listed = self
            .account
            .api(&format!("CONSUMER.LIST.{STREAM}"), json!({ "offset": 0 }))
            .await;
        for durable in listed["consumers"].as_array().into_iter().flatten() {
            let number = |side: &str, which: &str| durable[side][which].as_u64().unwrap_or_default();
            let name = durable["name"].as_str().unwrap_or_default();
            let last = number("delivered", "consumer_seq");
            for seq in number("ack_floor", "stream_seq") + 1..=number("delivered", "stream_seq") {
                let subject = format!("$JS.ACK.{STREAM}.{name}.1.{seq}.{last}.0.0");
                self.account.request(&subject, "", b"-NAK").await;
            }
        }
    }
}
