//! Opening a source, seeing to it that its durable is there, and saying what it waits for.

use std::sync::Arc;

use tokio::time::{Instant, sleep_until};

use super::{
    config::{OPEN_BACKOFF, SHORT_WAIT},
    durable::{self, Durable, DurableInfo, Known, OpenError},
    intake::Subscriber,
    left_behind::Used,
    link::Link,
    observe::{self, Observer, Seen},
    source::NatsSource,
};
use crate::{broker::BrokerError, error_chain::text};

/// A durable that is there, and what was asked of it.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) durable: Arc<Durable>,
    pub(super) inbox: String,
    pub(super) incoming: Subscriber,
    /// What the server says when the stream is deleted.
    pub(super) obituary: Subscriber,
    /// The number of the last request.
    pub(super) number: u64,
    pub(super) asked: Option<Asked>,
    /// The durable's number of the last delivery: a smaller one comes from a durable that was made anew.
    pub(super) last: u64,
    /// Until when everything that had arrived was taken out.
    pub(super) emptied: Instant,
    /// How the durable is, as of a few seconds ago.
    pub(super) observer: Observer,
    /// How often a connection had been made.
    pub(super) connects: u64,
}

impl Open {
    /// What is subscribed to.
    fn answers(&self) -> String {
        format!("{}.*", self.inbox)
    }

    /// Where is asked for messages.
    pub(super) fn question(&self, link: &Link) -> String {
        link.api_subject(&format!(
            "CONSUMER.MSG.NEXT.{}.{}",
            self.durable.stream, self.durable.name
        ))
    }
}

/// A request that the server holds.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) number: u64,
    /// How many messages it may still bring.
    pub(super) left: usize,
    /// When its end should have been heard of.
    pub(super) over: Instant,
}

impl NatsSource {
    /// Opens it if that can be done now; says it, and is tried again by the next pull, if not. Only what is wrong is an error.
    pub(super) async fn open_at_start(&mut self) -> Result<(), BrokerError> {
        match self.link.connected().await {
            Ok(()) => {}
            Err(error @ BrokerError::Invalid(_)) => return Err(error),
            Err(error) => {
                self.wait(&text(&error));
                return Ok(());
            }
        }
        match self.try_open().await {
            Ok(()) => Ok(()),
            Err(OpenError::NotYet(why)) => {
                self.failed(&why);
                Ok(())
            }
            Err(OpenError::Wrong(why)) => Err(BrokerError::Invalid(why)),
        }
    }

    /// The durable that it reads.
    pub(super) fn used(&self) -> Option<Used> {
        self.open.as_ref().map(|open| Used {
            stream: open.durable.stream.clone(),
            durable: open.durable.name.clone(),
        })
    }

    pub(super) async fn try_open(&mut self) -> Result<(), OpenError> {
        let (durable, info) = durable::open(&self.link, &self.wish, &self.name, self.known.as_ref()).await?;
        if let Some(previous) = self.previous.take() {
            previous.found(&durable);
        }
        let connected = self.link.intake.connected().await;
        connected.map_err(|error| OpenError::NotYet(text(&error)))?;
        let inbox = self.link.settings.new_inbox();
        let incoming = self.link.intake.subscribe(format!("{inbox}.*"));
        let advisory = format!("$JS.EVENT.ADVISORY.STREAM.DELETED.{}", durable.stream);
        let obituary = self.link.intake.subscribe(advisory);
        self.learn(&durable, &info);
        let durable = Arc::new(durable);
        self.open = Some(Open {
            observer: Observer::start(
                self.link.clone(),
                durable.clone(),
                self.wish.clone(),
                self.status.clone(),
            ),
            durable,
            inbox,
            incoming,
            obituary,
            number: 0,
            asked: None,
            last: 0,
            emptied: Instant::now(),
            connects: self.link.intake.connects(),
        });
        self.failures = 0;
        self.go_on();
        Ok(())
    }

    /// Notes what the server says about the durable.
    pub(super) fn learn(&mut self, durable: &Durable, info: &DurableInfo) {
        self.ack_wait = info.ack_wait();
        self.known = Some(Known {
            stream: durable.stream.clone(),
            stream_created: durable.stream_created,
            floor: info.ack_floor.stream_seq,
        });
        self.status.set_lag(Some(info.unsettled()));
        if info.paused {
            self.status.wait(&self.name, "the durable is paused on the server");
        } else {
            self.status.go_on(&self.name);
        }
    }

    pub(super) fn wait(&mut self, why: &str) {
        if self.why.as_deref() != Some(why) {
            tracing::warn!(
                group = self.wish.group,
                subject = self.wish.subject,
                why,
                "no messages come; waiting for that to pass"
            );
            self.why = Some(why.to_owned());
        }
        self.status.wait(&self.wish.subject, why);
    }

    pub(super) fn go_on(&mut self) {
        if self.why.take().is_some() {
            tracing::info!(
                group = self.wish.group,
                subject = self.wish.subject,
                "messages come again"
            );
        }
        self.status.go_on(&self.wish.subject);
    }

    pub(super) fn failed(&mut self, why: &str) {
        self.failures += 1;
        self.next_try = Instant::now() + OPEN_BACKOFF.bound(self.failures);
        self.wait(why);
    }

    /// Which right is missing without which nothing comes.
    fn denied(&self) -> Option<String> {
        let open = self.open.as_ref()?;
        let (answers, question) = (open.answers(), open.question(&self.link));
        let denied = |subject: &str| self.link.intake.denied(subject);
        if let Some(words) = denied(&answers) {
            return Some(format!(
                "the NATS server denies it: {words}; give this program's user the right to subscribe to its inbox, or set \
                 `inbox_prefix` to what it may subscribe to"
            ));
        }
        let words = denied(&question)?;
        Some(format!(
            "the NATS server denies it: {words}; give this program's user the right to publish to `{question}`"
        ))
    }

    /// Something came: what was denied isn't any more.
    pub(super) fn granted(&self) {
        if let (Some(open), Some(_)) = (&self.open, &self.why) {
            self.link.intake.granted(&open.question(&self.link));
        }
    }

    /// Waits until it is open and connected, at most until `deadline`.
    pub(super) async fn be_open(&mut self, deadline: Instant) -> Result<(), BrokerError> {
        loop {
            // A connection that is just being made anew is no news yet.
            let soon = deadline.min(Instant::now() + SHORT_WAIT);
            if let Err(error) = self.link.wait_connected(soon).await {
                self.wait(&text(&error));
                if Instant::now() >= deadline {
                    return Err(error);
                }
                continue;
            }
            if self.open.is_some() {
                match self.denied() {
                    Some(why) => self.wait(&why),
                    None => self.go_on(),
                }
                return Ok(());
            }
            if self.next_try > Instant::now() {
                sleep_until(self.next_try.min(deadline)).await;
            }
            if self.next_try <= Instant::now() {
                let why = match self.try_open().await {
                    Ok(()) => return Ok(()),
                    Err(OpenError::NotYet(why) | OpenError::Wrong(why)) => why,
                };
                self.failed(&why);
            }
            if Instant::now() >= deadline {
                let message = self.why.clone().unwrap_or_default();
                return Err(BrokerError::Unavailable { message, source: None });
            }
        }
    }

    /// The durable has to be found again.
    pub(super) fn lose(&mut self) {
        if let Some(open) = self.open.take() {
            // Nothing that it had on its way counts: it can't be told from what a new one sends.
            tracing::warn!(
                durable = self.name,
                stream = open.durable.stream,
                "the durable is gone or has changed; looking for it"
            );
            open.durable.lost();
            self.status.go_on(&observe::stream_part(&open.durable));
            self.status.set_lag(None);
            self.previous = Some(open.durable);
        }
        self.failures += 1;
        if self.failures > 1 {
            self.next_try = Instant::now() + OPEN_BACKOFF.bound(self.failures - 1);
        }
    }

    /// Takes in what was seen of the durable since the last time.
    pub(super) fn heed(&mut self) {
        let Some(open) = &mut self.open else { return };
        let Some(seen) = open.observer.seen() else { return };
        self.take_in(seen);
    }

    /// Asks the server how the durable is.
    pub(super) async fn look(&mut self) {
        let Some(open) = &self.open else { return };
        let durable = open.durable.clone();
        if let Some(seen) = observe::look(&self.link, &durable, &self.wish).await {
            self.take_in(seen);
        }
    }

    fn take_in(&mut self, seen: Seen) {
        let Some(open) = &self.open else { return };
        let durable = open.durable.clone();
        let Seen::There { info, streams } = seen else {
            return self.lose();
        };
        self.learn(&durable, &info);
        let part = observe::stream_part(&durable);
        match observe::elsewhere(&durable, &self.wish.subject, streams.as_deref(), &info) {
            None => self.status.go_on(&part),
            Some(_) if observe::is_drained(&durable, streams.as_deref(), &info) && self.ready.is_empty() => {
                self.status.go_on(&part);
                self.move_on(&durable);
            }
            Some(why) => self.status.wait(part, why),
        }
    }

    /// The subject is held by another stream now, and everything of this one is settled.
    fn move_on(&mut self, durable: &Durable) {
        tracing::warn!(
            durable = self.name,
            stream = durable.stream,
            "the subject is held by another stream by now; all of this one is settled, and that one is read from here on"
        );
        // Its leases are settled; late words about them mean this durable still.
        self.open = None;
        self.status.set_lag(None);
    }

    /// After the connection was made anew what was asked is forgotten.
    pub(super) fn mind_connection(&mut self) {
        let connects = self.link.intake.connects();
        if let Some(open) = self.open.as_mut().filter(|open| open.connects != connects) {
            open.connects = connects;
            open.asked = None;
        }
    }
}
