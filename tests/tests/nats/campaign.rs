//! Four worker processes; one is killed every 200 ms until all is done, and the NATS server three times meanwhile.

use std::time::{Duration, Instant};

use inbox_tests::{
    NatsJetStream, PostgresDatabase, Settled, TestBroker, TestDatabase,
    process::{Mode, Signal, WorkerCommand, long},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_effect_once_while_processes_and_the_nats_server_are_killed() {
    let count: u32 = if long() { 10_000 } else { 300 };
    let server = super::server().await;
    let broker = NatsJetStream::on(&server).await;
    let world = inbox_tests::World {
        flaky: inbox_tests::Flaky::new(broker.connect()),
        broker,
        database: PostgresDatabase::fresh().await,
        probe: inbox_tests::Probe::default(),
    };
    for number in 0..count {
        world.publish(&format!("m{number}")).await;
    }
    let start = || {
        WorkerCommand::on(env!("CARGO_BIN_EXE_worker"), Mode::Run, &world, "audit")
            .ack_wait(Duration::from_secs(1))
            .start()
    };
    let left = async || match world.broker.settled("audit", ">").await {
        Some(Settled { waiting, unacked }) => waiting + unacked,
        None => u64::from(count),
    };
    let mut workers: Vec<_> = (0..4).map(|_| start()).collect();
    let deadline = Instant::now() + Duration::from_secs(if long() { 1800 } else { 180 });
    let (mut kills, mut server_kills, mut runs) = (0, 0, 0);
    loop {
        let left = left().await;
        // At a quarter, the half and three quarters.
        if server_kills < 3 && left * 4 <= u64::from(count) * (3 - server_kills) {
            server.kill();
            tokio::time::sleep(Duration::from_millis(300)).await;
            server.resume().expect("the server");
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
        assert!(ended.killed_by(Signal::KILL), "{ended:#?}");
        kills += 1;
        runs += ended.all_runs();
    }
    for worker in workers {
        runs += worker.kill().await.all_runs();
    }
    println!("{count} messages, {runs} runs, {kills} processes and {server_kills} servers killed");
    let number = async |sql: &str| world.database.number(sql).await;
    let count = i64::from(count);
    assert_eq!(number("SELECT count(*) FROM effects").await, count);
    assert_eq!(number("SELECT count(DISTINCT msg_id) FROM effects").await, count);
    assert_eq!(number("SELECT count(*) FROM inbox_events").await, count);
    assert_eq!(number("SELECT count(*) FROM inbox_dead_letters").await, 0);
    assert_eq!((left().await, server_kills), (0, 3));
    assert!(kills > 0, "nobody was killed");
}
