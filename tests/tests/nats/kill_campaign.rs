//! Worker processes and the NATS server are killed until all messages are settled.

use std::time::Duration;

use inbox_tests::{Flaky, KillCampaign, NatsJetStream, PostgresDatabase, Probe, TestBroker, TestDatabase, World};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_effect_once_while_processes_and_the_nats_server_are_killed() {
    let server = super::server().await;
    let broker = NatsJetStream::on(&server).await;
    let world = World {
        flaky: Flaky::new(broker.connect()),
        broker,
        database: PostgresDatabase::fresh().await,
        probe: Probe::default(),
    };
    let campaign = KillCampaign {
        worker: env!("CARGO_BIN_EXE_worker"),
        messages: 300,
        needs_server: false,
    };
    campaign
        .run(&world, async || {
            server.kill();
            tokio::time::sleep(Duration::from_millis(300)).await;
            server.resume().expect("the server");
        })
        .await;
}
