//! Worker processes and the PostgreSQL server are killed until all messages are settled.

use std::time::Duration;

use inbox_tests::{EmbeddedFile, Flaky, KillCampaign, PostgresDatabase, Probe, TestBroker, World, servers::postgres};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_effect_once_while_processes_and_the_server_are_killed() {
    let Some(server) = postgres::own(&[]) else { return };
    let broker = EmbeddedFile::fresh().await;
    let world = World {
        flaky: Flaky::new(broker.connect()),
        broker,
        database: PostgresDatabase::on(&server).await,
        probe: Probe::default(),
    };
    let campaign = KillCampaign {
        worker: env!("CARGO_BIN_EXE_worker"),
        messages: 600,
        needs_server: true,
    };
    campaign
        .run(&world, async || {
            server.kill();
            tokio::time::sleep(Duration::from_millis(300)).await;
            server.resume().expect("the server");
        })
        .await;
}
