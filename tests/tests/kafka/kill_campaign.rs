//! Thousands of messages under random kills, rebalances and a restart of the broker.

use std::time::{Duration, Instant};

use inbox_tests::{
    KafkaCluster, Settled, TestBroker, TestDatabase, database_suite,
    process::{Mode, Signal, WorkerCommand, long},
    servers::kafka::own,
};

use super::{rebalances::OffsetWatch, world_on};

database_suite!(b18_f62_f63_random_kills_rebalances_and_a_restart_leave_every_effect_once);

async fn b18_f62_f63_random_kills_rebalances_and_a_restart_leave_every_effect_once<D: TestDatabase>() {
    let server = tokio::task::spawn_blocking(own).await.expect("a server");
    let count: u32 = if long() { 10_000 } else { 300 };
    let world = world_on::<D>(KafkaCluster::on(&server.brokers())).await;
    world.broker.spread("order.created").await;
    for number in 0..count {
        world.publish(&format!("m{number}")).await;
    }
    let start = || {
        WorkerCommand::on(env!("CARGO_BIN_EXE_worker"), Mode::Run, &world, "audit")
            .script("fail:0.1")
            .start()
    };
    let watch = OffsetWatch::start(&world.broker, "audit");
    let mut workers = vec![start(), start()];
    let deadline = Instant::now() + Duration::from_secs(if long() { 1200 } else { 300 });
    let (mut turns, mut kills, mut runs) = (0, 0, 0);
    while turns < 3 || world.broker.try_settled("audit", ">").await != Ok(Some(Settled::ALL)) {
        assert!(
            Instant::now() < deadline,
            "not done after {kills} kills and {runs} runs"
        );
        tokio::time::sleep(KafkaCluster::KILLS.mul_f64(0.5 + fastrand::f64())).await;
        turns += 1;
        match turns % 3 {
            // A member dies.
            0 => {
                let victim = fastrand::usize(..workers.len());
                let ended = workers.swap_remove(victim).kill().await;
                assert!(ended.killed_by(Signal::KILL), "{ended:#?}");
                kills += 1;
                runs += ended.all_runs();
                workers.push(start());
            }
            // One joins.
            1 => workers.push(start()),
            // One leaves.
            _ => {
                let mut leaver = workers.remove(0);
                leaver.says("ready").await;
                runs += leaver.stop().await.all_runs();
            }
        }
        if turns == 2 {
            let server = &server;
            tokio::task::block_in_place(|| {
                server.kill();
                server.resume().expect("restarted");
            });
        }
    }
    for mut worker in workers {
        worker.says("ready").await;
        runs += worker.stop().await.all_runs();
    }
    let polls = watch.end().await;
    let count = i64::from(count);
    world.assert_each_done_once(count).await;
    assert!(
        kills > 0 && polls > 0 && runs as i64 > count,
        "{kills} kills, {polls} polls, {runs} runs"
    );
}
