//! A server that is down, hangs, is read only or has become a standby: nothing is lost, and no attempts are counted.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use inbox_runtime::InboxHandle;
use inbox_tests::{
    PostgresDatabase, Step, TestDatabase, eventually, pool,
    process::long,
    servers::{Proxy, command, postgres, postgres::Postgres},
};

use crate::{World, assert_all_done, publish, world_on};

/// Waits until the inbox is unready and says why.
async fn not_ready(inbox: &InboxHandle) -> String {
    eventually("the inbox is not ready", || async { !inbox.health().ready }).await;
    let health = inbox.health();
    assert!(health.live, "{health:?}");
    health.reasons.join("; ")
}

/// Waits until all is settled and sees to it that no attempt and no message was lost.
async fn recovers(world: &World, inbox: InboxHandle, count: i64) {
    eventually("all is settled", || world.settled("billing")).await;
    eventually("the inbox is ready again", || async { inbox.health().ready }).await;
    inbox.stop();
    let report = inbox.join().await.expect("stopped");
    assert_eq!((report.failed, report.dead_lettered), (0, 0), "{report}");
    assert_all_done(world, "billing", count).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f79_a_server_that_is_stopped() {
    let (outage, count) = if long() {
        (Duration::from_secs(10), 1000)
    } else {
        (Duration::from_secs(5), 200)
    };
    let Some(server) = postgres::own(&[]) else { return };
    let world = world_on(PostgresDatabase::on(&server).await).await;
    publish(&world, count).await;
    world.probe.script(|_| Step::Sleep(Duration::from_millis(10)));
    let inbox = world.inbox(&["billing"]).await.spawn();
    eventually("it is at work", || async { inbox.report().processed > 5 }).await;
    server.stop();
    let runs = world.probe.total();
    not_ready(&inbox).await;
    let start = Instant::now();
    tokio::time::sleep(outage).await;
    let report = inbox.report();
    let tries = report.deferred as f64 / start.elapsed().as_secs_f64();
    assert!(tries < 5.0, "{tries} tries a second");
    assert!(world.probe.total() <= runs + 1, "handlers ran without a database");
    assert!(!inbox.health().ready);
    server.resume().expect("the server");
    recovers(&world, inbox, i64::try_from(count).expect("few")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f79_a_server_that_is_killed_three_times() {
    let Some(server) = postgres::own(&[]) else { return };
    let world = world_on(PostgresDatabase::on(&server).await).await;
    publish(&world, 300).await;
    world.probe.script(|_| Step::Sleep(Duration::from_millis(2)));
    let inbox = world.inbox(&["billing"]).await.spawn();
    for kill in 1..=3 {
        eventually("it is at work", || async { inbox.report().processed > 50 * kill }).await;
        server.kill();
        tokio::time::sleep(Duration::from_millis(200)).await;
        server.resume().expect("the server");
    }
    recovers(&world, inbox, 300).await;
}

/// The connections stay open, and nothing is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_for_a_while() {
    let Some(server) = postgres::own(&[]) else { return };
    let world = world_on(PostgresDatabase::on(&server).await).await;
    publish(&world, 100).await;
    world.probe.script(|_| Step::Sleep(Duration::from_millis(5)));
    let inbox = world.inbox(&["billing"]).await.spawn();
    eventually("it is at work", || async { inbox.report().processed > 20 }).await;
    server.pause();
    tokio::time::sleep(Duration::from_secs(4)).await;
    server.unpause();
    recovers(&world, inbox, 100).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f13_a_server_that_is_set_to_read_only_under_load() {
    let Some(server) = postgres::own(&[]) else { return };
    let world = world_on(PostgresDatabase::on(&server).await).await;
    let inbox = world.inbox(&["billing"]).await.spawn();
    world.probe.script(|_| Step::Sleep(Duration::from_millis(5)));
    let mut count = 0;
    let load = async |inbox: &InboxHandle, until_ready: bool, count: &mut i64| {
        let start = Instant::now();
        while inbox.health().ready != until_ready {
            assert!(start.elapsed() < Duration::from_mins(2), "{:?}", inbox.health());
            *count += 1;
            world.publish(&format!("m{count}")).await;
            tokio::time::sleep(Duration::from_millis(4)).await;
        }
    };
    publish(&world, 50).await;
    count += 50;
    let set = async |value: &str| {
        let mut conn = world.database.stranger().await;
        for sql in [
            format!("ALTER SYSTEM SET default_transaction_read_only = {value}"),
            "SELECT pg_reload_conf()".to_owned(),
        ] {
            use inbox_runtime::sqlx::{AssertSqlSafe, raw_sql};
            raw_sql(AssertSqlSafe(sql)).execute(&mut conn).await.expect("set");
        }
    };
    set("on").await;
    load(&inbox, false, &mut count).await;
    let why = inbox.health().reasons.join("; ");
    assert!(why.contains("read_only") || why.contains("read-only"), "{why}");
    let (start, before) = (Instant::now(), inbox.report());
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (after, seconds) = (inbox.report(), start.elapsed().as_secs_f64());
    assert_eq!(
        after.processed, before.processed,
        "it writes to a database that wants no writes"
    );
    let tries = (after.deferred - before.deferred) as f64 / seconds;
    assert!(tries < 5.0, "a hot loop: {tries} tries a second");
    set("off").await;
    recovers(&world, inbox, count).await;
}

/// Where Debian keeps the programs of a whole PostgreSQL.
fn whole() -> Option<PathBuf> {
    let mut versions: Vec<_> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path().join("bin"))
        .filter(|bin| bin.join("pg_basebackup").exists() && bin.join("initdb").exists())
        .collect();
    versions.sort();
    if versions.is_empty() {
        println!("skipped: pg_basebackup is missing; install it: apt-get install -y postgresql");
    }
    versions.pop()
}

fn run(program: &Path, folder: &Path, arguments: &[&str]) {
    let output = command(program, true)
        .args(arguments)
        .current_dir(folder)
        .output()
        .expect("started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The address leads to a standby after a switch-over, which is promoted after a while.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f13_a_standby_behind_the_address() {
    let Some(programs) = whole() else { return };
    let folder = postgres::new_folder().expect("a folder");
    run(
        &programs.join("initdb"),
        &folder,
        &[
            "-D",
            "data",
            "--username=postgres",
            "--auth=trust",
            "--no-locale",
            "--encoding=UTF8",
            "--no-sync",
        ],
    );
    let primary = Postgres::start_on(programs.clone(), folder, &[]).expect("a primary");
    let folder = postgres::new_folder().expect("a folder");
    let port = primary.port().to_string();
    run(
        &programs.join("pg_basebackup"),
        &folder,
        &[
            "-h",
            "127.0.0.1",
            "-p",
            &port,
            "-U",
            "postgres",
            "-D",
            "data",
            "-R",
            "-X",
            "stream",
            "-c",
            "fast",
        ],
    );
    let standby = Postgres::start_on(programs, folder, &[]).expect("a standby");

    let database = PostgresDatabase::on(&primary).await;
    let proxy = Proxy::before(primary.port()).await;
    let own = pool(proxy.url(&database.url()).parse().expect("a URL"), 5);
    let world = world_on(database.with_pool(own)).await;
    publish(&world, 100).await;
    world.probe.script(|_| Step::Sleep(Duration::from_millis(10)));
    let inbox = world.inbox(&["billing"]).await.spawn();
    eventually("it is at work", || async { inbox.report().processed > 20 }).await;

    // The primary gets no more writes; the standby catches up.
    proxy.cut();
    let position = world
        .database
        .text("SELECT pg_current_wal_lsn()::text")
        .await
        .expect("a position");
    let on_standby = world.database.at(&standby);
    eventually("the standby has everything", || async {
        on_standby
            .number(&format!(
                "SELECT (pg_last_wal_replay_lsn() >= '{position}')::int::bigint"
            ))
            .await
            == 1
    })
    .await;
    proxy.lead_to(standby.port());
    let before = proxy.round_trips();
    proxy.heal();
    eventually("the standby has been tried", || async {
        proxy.round_trips() > before + 5
    })
    .await;
    let runs = world.probe.total();
    let why = not_ready(&inbox).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!inbox.health().ready, "{why}");
    assert!(world.probe.total() <= runs + 1, "handlers ran on a standby");
    assert_eq!(on_standby.number("SELECT count(*) FROM inbox_dead_letters").await, 0);
    assert_eq!(on_standby.number("SELECT pg_promote()::int::bigint").await, 1);
    let world = World {
        database: on_standby,
        ..world
    };
    recovers(&world, inbox, 100).await;
}
