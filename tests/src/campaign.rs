//! A campaign of kills: worker processes share the messages of a group while they and their server are killed.

use std::time::{Duration, Instant};

use crate::{
    broker::{Settled, TestBroker},
    database::TestDatabase,
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
