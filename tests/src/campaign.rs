//! A campaign of kills: worker processes share the messages of a group while they and their server are killed. And a publisher for
//! those in which messages come all the while.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use inbox_runtime::{Broker, BrokerError};
use tokio::task::JoinHandle;

use crate::{
    broker::{Settled, TestBroker},
    database::TestDatabase,
    probe::Order,
    process::{Ended, Mode, Signal, WorkerCommand, long},
    world::World,
};

/// Four workers share the messages; one is killed every 200 ms until all are settled, and the server three times on the way.
#[derive(Clone, Copy, Debug)]
pub struct KillCampaign {
    /// The program of the workers: `env!("CARGO_BIN_EXE_worker")`, which only a test knows.
    pub worker: &'static str,
    /// How many messages there are, unless `INBOX_TEST_LONG` asks for ten thousand.
    pub messages: u32,
    /// Whether a worker that starts while the server is down ends with an error.
    pub needs_server: bool,
}

impl KillCampaign {
    /// Runs it. `restart_server` kills the server and starts it again on its data.
    ///
    /// # Panics
    ///
    /// When an effect is missing or there twice, when a worker ends otherwise than by a kill, or when it takes too long.
    pub async fn run<B: TestBroker, D: TestDatabase>(self, world: &World<B, D>, restart_server: impl AsyncFn()) {
        let count = if long() { 10_000 } else { self.messages };
        for number in 0..count {
            world.publish(&format!("m{number}")).await;
        }
        let start = || {
            WorkerCommand::on(self.worker, Mode::Run, world, "audit")
                .ack_wait(Duration::from_secs(1))
                .start()
        };
        let mut workers: Vec<_> = (0..4).map(|_| start()).collect();
        let deadline = Instant::now() + Duration::from_secs(if long() { 1800 } else { 300 });
        let (mut kills, mut server_kills, mut runs) = (0, 0, 0);
        loop {
            let left = left(world, count).await;
            // At a quarter, the half and three quarters.
            if server_kills < 3 && left * 4 <= u64::from(count) * (3 - server_kills) {
                restart_server().await;
                server_kills += 1;
            }
            if left == 0 {
                break;
            }
            assert!(
                Instant::now() < deadline,
                "{left} left after {kills} kills and {runs} runs"
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
            let victim = fastrand::usize(..workers.len());
            let ended = std::mem::replace(&mut workers[victim], start()).kill().await;
            self.assert_killed(&ended);
            kills += 1;
            runs += ended.all_runs();
        }
        for worker in workers {
            runs += worker.kill().await.all_runs();
        }
        println!("{count} messages, {runs} runs, {kills} processes and {server_kills} servers killed");
        world.assert_each_done_once(i64::from(count)).await;
        assert_eq!((left(world, count).await, server_kills), (0, 3));
        assert!(kills > 0, "nobody was killed");
    }

    fn assert_killed(self, ended: &Ended) {
        let never_began = self.needs_server && ended.said.is_empty();
        assert!(ended.killed_by(Signal::KILL) || never_began, "{ended:#?}");
    }
}

/// How many messages the broker has that are not settled.
async fn left<B: TestBroker, D: TestDatabase>(world: &World<B, D>, count: u32) -> u64 {
    match world.broker.settled("audit", ">").await {
        Some(Settled { waiting, unacked }) => waiting + unacked,
        None => u64::from(count),
    }
}

/// A publisher of `order.created` that runs beside a campaign: `m0`, `m1` and so on, one every 20 ms.
#[derive(Debug)]
pub struct Publisher {
    stop: Arc<AtomicBool>,
    task: JoinHandle<Published>,
}

/// What a publisher came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Published {
    /// How many messages the broker has confirmed.
    pub messages: i64,
    /// How often it took one not now.
    pub not_now: u32,
}

impl Publisher {
    /// Starts it. A message that isn't confirmed is published again with its id.
    pub fn start(broker: impl Broker) -> Self {
        let stop = Arc::default();
        let task = tokio::spawn(publish_until(broker, Arc::clone(&stop)));
        Self { stop, task }
    }

    /// Stops it.
    ///
    /// # Panics
    ///
    /// When a message was refused for good, which no outage and no election must do.
    pub async fn stop(self) -> Published {
        self.stop.store(true, Ordering::SeqCst);
        self.task.await.expect("no message was refused")
    }
}

async fn publish_until(broker: impl Broker, stop: Arc<AtomicBool>) -> Published {
    let mut published = Published::default();
    while !stop.load(Ordering::SeqCst) {
        let message = Order::new("o")
            .to("order.created")
            .id(format!("m{}", published.messages));
        match broker.publish(message).await {
            Ok(_) => published.messages += 1,
            Err(BrokerError::NotNow { .. } | BrokerError::Unavailable { .. }) => published.not_now += 1,
            Err(error) => panic!("{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    published
}
