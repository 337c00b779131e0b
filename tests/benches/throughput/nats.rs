//! Messages from a JetStream stream on the disk.

use inbox_runtime::Nats;

use crate::{Error, Way};

/// The server of `NATS_URL`.
pub(crate) struct JetStream;

impl Way for JetStream {
    const NAME: &'static str = "nats";
    type Broker = Nats;

    async fn filled(count: u64) -> Result<Option<Nats>, Error> {
        let Ok(url) = std::env::var("NATS_URL") else {
            return Ok(None);
        };
        let account = inbox_tests::JetStream::at(&url).ok_or("NATS_URL is not as in nats://127.0.0.1:4222")?;
        account.fill("BENCH", "order.created", count).await;
        Ok(Some(Nats::new(&url)?))
    }
}

/// A stream on the disk with nothing in it, if there is a server.
pub(crate) async fn empty(subject: &str) -> Result<Option<Nats>, Error> {
    let Ok(url) = std::env::var("NATS_URL") else {
        return Ok(None);
    };
    let account = inbox_tests::JetStream::at(&url).ok_or("NATS_URL is not as in nats://127.0.0.1:4222")?;
    account.fill("LATENCY", subject, 0).await;
    Ok(Some(Nats::new(&url)?))
}
