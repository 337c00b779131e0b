//! Pulling: asking the server for messages, waiting for them, and keeping those that a cancelled pull leaves behind.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use async_nats::{Message, StatusCode, Subscriber};
use futures_util::{FutureExt, StreamExt, future::join_all};
use serde_json::{Value, json};
use tokio::{
    runtime::Handle,
    time::{Instant, sleep_until, timeout},
};

use super::{
    ack::NatsLease,
    config::{ANSWER_TIMEOUT, LOOK_INTERVAL, OPEN_BACKOFF, PULL_EXPIRES, PULL_GRACE, SHORT_WAIT},
    durable::{self, Durable, DurableInfo, Known, OpenError},
    headers,
    link::Link,
    reply::Reply,
    rescue::{Rescued, rescue},
};
use crate::{
    broker::{BrokerError, Lease, Source, SourceStatus, Subscription},
    delivery::Delivery,
    pipeline::text,
};

/// How long it must be quiet before a closed source believes that nothing is on its way any more.
const QUIET: Duration = Duration::from_millis(100);

/// Where the deliveries of one subscription to a JetStream stream come from.
///
/// Dropped, it gives back what it had received and not handed over.
#[derive(Debug)]
pub struct NatsSource {
    link: Arc<Link>,
    wish: Subscription,
    /// The durable's name.
    name: String,
    status: SourceStatus,
    open: Option<Open>,
    /// The durable that was lost, until it is known what came after it.
    previous: Option<Arc<Durable>>,
    known: Option<Known>,
    ack_wait: Duration,
    /// How often it could not be opened in a row, and when it is tried again.
    failures: u32,
    next_try: Instant,
    /// What keeps it from being opened.
    why: Option<String>,
    /// What was received and not handed over.
    ready: VecDeque<(Delivery, NatsLease)>,
    rescued: Rescued,
    closed: bool,
}

/// A durable that is there, and what was asked of it.
#[derive(Debug)]
struct Open {
    durable: Arc<Durable>,
    inbox: String,
    incoming: Subscriber,
    /// What the server says when the stream is deleted.
    obituary: Subscriber,
    /// The number of the last request.
    number: u64,
    asked: Option<Asked>,
    /// The durable's number of the last delivery: a smaller one comes from a durable that was made anew.
    last: u64,
    /// Until when everything that had arrived was taken out.
    emptied: Instant,
    /// When the server was last asked how the durable is.
    looked: Instant,
    /// How often a connection had been made.
    connects: u64,
}

/// A request that the server holds.
#[derive(Debug)]
struct Asked {
    number: u64,
    /// How many messages it may still bring.
    left: usize,
    /// When its end should have been heard of.
    over: Instant,
}

/// What a message from the server was.
enum Arrived {
    Delivery,
    /// The request of that number has ended.
    Over(u64),
    /// The durable isn't there any more, or isn't what it was.
    Gone,
    Nothing,
}

impl NatsSource {
    pub(super) fn new(link: Arc<Link>, wish: Subscription, name: String) -> Self {
        Self {
            ack_wait: wish.ack_wait,
            link,
            wish,
            name,
            status: SourceStatus::default(),
            open: None,
            previous: None,
            known: None,
            failures: 0,
            next_try: Instant::now(),
            why: None,
            ready: VecDeque::new(),
            rescued: Rescued::default(),
            closed: false,
        }
    }

    /// Opens it if that can be done now; says it, and is tried again by the next pull, if not. Only what is wrong is an error.
    pub(super) async fn open_at_start(&mut self) -> Result<(), BrokerError> {
        match self.link.connected().await {
            Ok(_) => {}
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

    /// The stream that it reads.
    pub(super) fn stream(&self) -> Option<&str> {
        self.open.as_ref().map(|open| open.durable.stream.as_str())
    }

    async fn try_open(&mut self) -> Result<(), OpenError> {
        let (durable, info) = durable::open(&self.link, &self.wish, &self.name, self.known.as_ref()).await?;
        if let Some(previous) = self.previous.take() {
            previous.found(&durable);
        }
        let not_yet = |error: BrokerError| OpenError::NotYet(text(&error));
        let client = self.link.connected().await.map_err(not_yet)?;
        let inbox = client.new_inbox();
        let subscribed = async |subject: String| {
            let subscribed = client.subscribe(subject).await;
            subscribed.map_err(|error| OpenError::NotYet(text(&error)))
        };
        let incoming = subscribed(format!("{inbox}.*")).await?;
        let obituary = subscribed(format!("$JS.EVENT.ADVISORY.STREAM.DELETED.{}", durable.stream)).await?;
        let now = Instant::now();
        self.learn(&durable, &info);
        self.open = Some(Open {
            durable: Arc::new(durable),
            inbox,
            incoming,
            obituary,
            number: 0,
            asked: None,
            last: 0,
            emptied: now,
            looked: now,
            connects: self.link.connects(),
        });
        self.failures = 0;
        self.go_on();
        // What was delivered to an earlier process and broke its connection.
        self.rescue().await;
        Ok(())
    }

    /// Notes what the server says about the durable.
    fn learn(&mut self, durable: &Durable, info: &DurableInfo) {
        self.ack_wait = info.ack_wait();
        self.known = Some(Known {
            stream: durable.stream.clone(),
            stream_created: durable.stream_created,
            floor: info.ack_floor.stream_seq,
        });
        self.status.set_lag(Some(info.num_pending + info.num_ack_pending));
        if info.paused {
            self.status.wait(&self.name, "the durable is paused on the server");
        } else {
            self.status.go_on(&self.name);
        }
    }

    fn wait(&mut self, why: &str) {
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

    fn go_on(&mut self) {
        if self.why.take().is_some() {
            tracing::info!(
                group = self.wish.group,
                subject = self.wish.subject,
                "messages come again"
            );
        }
        self.status.go_on(&self.wish.subject);
    }

    fn failed(&mut self, why: &str) {
        self.failures += 1;
        self.next_try = Instant::now() + OPEN_BACKOFF.bound(self.failures);
        self.wait(why);
    }

    /// Waits until it is open and connected, at most until `deadline`.
    async fn be_open(&mut self, deadline: Instant) -> Result<(), BrokerError> {
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
                self.go_on();
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
    fn lose(&mut self) {
        if let Some(open) = self.open.take() {
            // Nothing that it had on its way counts: it can't be told from what a new one sends.
            tracing::warn!(
                durable = self.name,
                stream = open.durable.stream,
                "the durable is gone or has changed; looking for it"
            );
            open.durable.lost();
            self.previous = Some(open.durable);
        }
        self.failures += 1;
        if self.failures > 1 {
            self.next_try = Instant::now() + OPEN_BACKOFF.bound(self.failures - 1);
        }
    }

    /// Asks the server how the durable is, if that wasn't done for a while.
    async fn look(&mut self, interval: Duration) {
        let Some(open) = self.open.as_mut().filter(|open| open.looked.elapsed() >= interval) else {
            return;
        };
        open.looked = Instant::now();
        let durable = open.durable.clone();
        let question = format!("CONSUMER.INFO.{}.{}", durable.stream, durable.name);
        let info: Result<DurableInfo, _> = self.link.api(&question, &Value::Null).await;
        match info {
            Ok(info) if info.created == durable.created => self.learn(&durable, &info),
            Ok(_) => self.lose(),
            Err(error) if error.is_not_found() => self.lose(),
            Err(error) => tracing::debug!(durable = self.name, ?error, "the durable could not be looked at"),
        }
    }

    /// After the connection was made anew: what was asked is forgotten, and something may have broken it.
    async fn mind_connection(&mut self) {
        let connects = self.link.connects();
        if let Some(open) = self.open.as_mut().filter(|open| open.connects != connects) {
            open.connects = connects;
            open.asked = None;
            self.rescue().await;
        }
    }

    async fn rescue(&mut self) {
        let Some(open) = &self.open else { return };
        match rescue(&self.link, &open.durable, &self.wish.subject, &self.rescued).await {
            Ok(found) => self.ready.extend(found),
            Err(error) => tracing::debug!(?error, "it could not be looked for messages that break the connection"),
        }
    }

    /// Sends a request for `max` messages: those that are ready, or those that come within `wait`.
    async fn ask(&mut self, max: usize, wait: Option<Duration>) -> Result<u64, BrokerError> {
        let client = self.link.connected().await?;
        let Some(open) = &mut self.open else { return Ok(0) };
        let body = match wait {
            None => json!({ "batch": max, "no_wait": true }),
            Some(wait) => json!({ "batch": max, "expires": u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX) }),
        };
        let number = open.number + 1;
        let subject = format!(
            "$JS.API.CONSUMER.MSG.NEXT.{}.{}",
            open.durable.stream, open.durable.name
        );
        client
            .publish_with_reply(subject, format!("{}.{number}", open.inbox), body.to_string().into())
            .await
            .map_err(|error| BrokerError::unavailable("messages can't be asked for", error))?;
        open.number = number;
        if let Some(wait) = wait {
            open.asked = Some(Asked {
                number,
                left: max,
                over: Instant::now() + wait + PULL_GRACE,
            });
        }
        Ok(number)
    }

    /// Takes out what has arrived.
    fn take_arrived(&mut self) {
        while let Some(open) = &mut self.open {
            let since = open.emptied;
            match open.incoming.next().now_or_never() {
                Some(Some(message)) => {
                    self.arrive(&message, since);
                }
                // It ends only with the client.
                Some(None) => self.lose(),
                None => {
                    open.emptied = Instant::now();
                    return;
                }
            }
        }
    }

    fn arrive(&mut self, message: &Message, since: Instant) -> Arrived {
        let Some(open) = &mut self.open else {
            return Arrived::Nothing;
        };
        if let Some(reply) = message.reply.as_deref().and_then(Reply::read) {
            if let Some(asked) = &mut open.asked {
                asked.left -= 1;
                if asked.left == 0 {
                    open.asked = None;
                }
            }
            // The stream or the durable was made anew without our hearing of its end. Its messages have the old one's
            // numbers, so none is taken for one of those.
            if reply.number <= open.last || open.obituary.next().now_or_never().is_some() {
                let link = self.link.clone();
                let back = reply.text.to_owned();
                tokio::spawn(async move { link.ask(back, "-NAK".into()).await });
                self.lose();
                return Arrived::Gone;
            }
            open.last = reply.number;
            self.failures = 0;
            let delivery = delivery(&open.durable, message, &reply);
            let lease = NatsLease::new(
                self.link.clone(),
                open.durable.clone(),
                reply.seq,
                reply.text.to_owned(),
                since,
            );
            self.ready.push_back((delivery, lease));
            return Arrived::Delivery;
        }
        self.status_arrives(message)
    }

    /// The server says how it is with a request.
    fn status_arrives(&mut self, message: &Message) -> Arrived {
        let (Some(open), Some(status)) = (&mut self.open, message.status) else {
            return Arrived::Nothing;
        };
        if status == StatusCode::IDLE_HEARTBEAT {
            return Arrived::Nothing;
        }
        let number = message
            .subject
            .rsplit('.')
            .next()
            .and_then(|number| number.parse().ok())
            .unwrap_or_default();
        if open.asked.as_ref().is_some_and(|asked| asked.number == number) {
            open.asked = None;
        }
        let why = message.description.as_deref().unwrap_or("no reason given");
        match status {
            StatusCode::NOT_FOUND | StatusCode::TIMEOUT => Arrived::Over(number),
            // It goes on elsewhere.
            StatusCode::REQUEST_TERMINATED if ["Leadership Change", "Server Shutdown"].contains(&why) => {
                Arrived::Over(number)
            }
            _ => {
                tracing::debug!(durable = self.name, %status, why, "a request for messages was ended");
                self.lose();
                Arrived::Gone
            }
        }
    }

    /// Keeps the leases of what waits here, and drops what has passed on.
    async fn renew_ready(&mut self) {
        let mut index = 0;
        while let Some((_, lease)) = self.ready.get(index) {
            if lease.age() < self.ack_wait / 3 || lease.progress().await.is_ok() {
                index += 1;
            } else {
                self.ready.remove(index);
            }
        }
    }

    fn hand_over(&mut self, max: usize) -> Vec<(Delivery, NatsLease)> {
        self.ready.drain(..max.min(self.ready.len())).collect()
    }

    /// Waits until something arrives or changes, at most until `deadline`.
    async fn next(&mut self, deadline: Instant) -> Arrived {
        let mut changes = self.link.changes();
        let Some(open) = &mut self.open else {
            return Arrived::Gone;
        };
        let message = tokio::select! {
            biased;
            message = open.incoming.next() => message,
            _ = changes.changed() => return Arrived::Nothing,
            () = sleep_until(deadline) => return Arrived::Nothing,
        };
        match message {
            Some(message) => self.arrive(&message, Instant::now()),
            None => {
                self.lose();
                Arrived::Gone
            }
        }
    }

    /// What is ready now.
    async fn pull_ready(&mut self, max: usize) -> Result<(), BrokerError> {
        let patience = Instant::now() + SHORT_WAIT;
        for _ in 0..3 {
            self.be_open(patience).await?;
            self.mind_connection().await;
            self.take_arrived();
            if !self.ready.is_empty() {
                return Ok(());
            }
            let number = self.ask(max, None).await?;
            let deadline = Instant::now() + ANSWER_TIMEOUT;
            let connects = self.link.connects();
            while Instant::now() < deadline && self.link.connects() == connects && self.open.is_some() {
                match self.next(deadline).await {
                    Arrived::Delivery => {
                        self.take_arrived();
                        return Ok(());
                    }
                    Arrived::Over(over) if over == number => return Ok(()),
                    Arrived::Gone => break,
                    Arrived::Over(_) | Arrived::Nothing => self.link.connected().await.map(drop)?,
                }
            }
        }
        let message = "the NATS server did not say what is ready".to_owned();
        Err(BrokerError::Unavailable { message, source: None })
    }

    /// What comes until `deadline`.
    async fn pull_until(&mut self, max: usize, deadline: Instant) {
        while !self.closed {
            if self.be_open(deadline).await.is_err() {
                return;
            }
            self.mind_connection().await;
            self.look(LOOK_INTERVAL).await;
            self.take_arrived();
            let now = Instant::now();
            if !self.ready.is_empty() || now >= deadline {
                return;
            }
            let Some(open) = &mut self.open else { continue };
            match &open.asked {
                None => {
                    let wait = (deadline - now).clamp(Duration::from_millis(10), PULL_EXPIRES);
                    // Not connected any more, which the next round sees.
                    let _ = self.ask(max, Some(wait)).await;
                }
                Some(asked) if asked.over <= now => {
                    open.asked = None;
                    self.look(Duration::ZERO).await;
                }
                Some(asked) => {
                    let until = asked.over.min(deadline);
                    self.next(until).await;
                }
            }
        }
    }
}

fn delivery(durable: &Durable, message: &Message, reply: &Reply<'_>) -> Delivery {
    let mut delivery = Delivery::new(message.subject.to_string(), durable.position(reply.seq));
    delivery.headers = headers::from_map(message.headers.as_ref());
    delivery.payload = Some(message.payload.clone());
    delivery.delivery_count = Some(reply.deliveries);
    delivery.redelivered = reply.deliveries > 1;
    delivery.published_at = reply.published_at;
    delivery
}

impl Source for NatsSource {
    type Lease = NatsLease;

    async fn pull(&mut self, max: usize, wait: Duration) -> Result<Vec<(Delivery, Self::Lease)>, BrokerError> {
        if max == 0 || self.closed {
            return Ok(Vec::new());
        }
        self.take_arrived();
        self.renew_ready().await;
        if self.ready.is_empty() {
            if wait.is_zero() {
                self.pull_ready(max).await?;
            } else {
                // Later than the clock can tell is about never.
                let long = Duration::from_secs(86_400);
                self.pull_until(max, Instant::now() + wait.min(long)).await;
            }
        }
        Ok(self.hand_over(max))
    }

    async fn close(&mut self) {
        self.closed = true;
        loop {
            self.take_arrived();
            let back = std::mem::take(&mut self.ready);
            join_all(back.iter().map(|(_, lease)| lease.nak(Duration::ZERO))).await;
            // What the server still holds of a request may bring something at any moment.
            let Some(open) = self.open.as_mut().filter(|open| open.asked.is_some()) else {
                break;
            };
            match timeout(QUIET, open.incoming.next()).await {
                Ok(Some(message)) => {
                    self.arrive(&message, Instant::now());
                }
                Ok(None) | Err(_) => break,
            }
        }
        if let Some(mut open) = self.open.take() {
            let _ = open.incoming.unsubscribe().await;
        }
    }

    fn ack_wait(&self) -> Duration {
        self.ack_wait
    }

    fn status(&self) -> SourceStatus {
        self.status.clone()
    }
}

impl Drop for NatsSource {
    fn drop(&mut self) {
        self.take_arrived();
        let back = std::mem::take(&mut self.ready);
        // Without a runtime the leases have to run out.
        if let (false, Ok(runtime)) = (back.is_empty(), Handle::try_current()) {
            runtime.spawn(async move {
                join_all(back.iter().map(|(_, lease)| lease.nak(Duration::ZERO))).await;
            });
        }
    }
}
