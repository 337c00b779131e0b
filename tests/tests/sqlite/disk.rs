//! A disk that is full, and a file that is deleted: no message's fault, so nothing is dead-lettered and nothing acknowledged.

use std::{fs, path::PathBuf};

use inbox_runtime::{
    DeadLetterReason, InboxHandle, Outcome, migrate,
    sqlx::{
        AssertSqlSafe, SqlitePool, query, raw_sql,
        sqlite::{SqliteConnectOptions, SqlitePoolOptions},
    },
};
use inbox_tests::{Step, TestDatabase, eventually, next};

use super::Here;

/// Some 200 kB for one message.
const BIG: &str = "INSERT INTO effects (grp, msg_id) VALUES ('billing', hex(randomblob(100000)))";

fn swallow(sql: &'static str, next: Step) -> Step {
    Step::Swallow(sql, Box::new(next))
}

/// A pool of one connection on a file that may grow by so many pages, as on a disk with no more room.
async fn limited(world: &Here, room: i64) -> SqlitePool {
    migrate(&world.database.pool()).await.expect("the tables");
    let pages = world.database.number("PRAGMA page_count").await;
    let options = SqliteConnectOptions::new().filename(world.database.path());
    let pool = SqlitePoolOptions::new()
        .max_connections(1)
        .after_connect(move |conn, _| {
            Box::pin(async move {
                let limit = format!("PRAGMA max_page_count = {}", pages + room);
                raw_sql(AssertSqlSafe(limit)).execute(conn).await?;
                Ok(())
            })
        })
        .connect_with(options)
        .await;
    pool.expect("a pool")
}

async fn not_ready(handle: &InboxHandle, because: &str) {
    eventually("not ready, with the cause", async || {
        let health = handle.health();
        !health.ready && health.reasons.iter().any(|reason| reason.contains(because))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g09_a_full_disk_is_waited_for() {
    for step in [
        Step::Exec(BIG),
        swallow(BIG, Step::Ok),
        swallow(BIG, Step::Fail("in words of its own")),
        swallow(BIG, swallow(BIG, Step::Permanent("in words of its own"))),
    ] {
        let world = Here::new().await;
        let pool = limited(&world, 0).await;
        for id in ["m1", "m2", "m3"] {
            world.publish(id).await;
        }
        let first = step.clone();
        world.probe.script(move |call| match (call.id.as_str(), call.run) {
            ("m1", _) => first.clone(),
            _ => Step::Ok,
        });
        let handle = world
            .builder(&["billing"])
            .store(pool.clone())
            .spawn()
            .await
            .expect("an inbox");
        not_ready(&handle, "full").await;
        let report = handle.report();
        assert_eq!(
            (report.failed, report.dead_lettered, report.acked),
            (0, 0, 0),
            "{step:?}: {report}"
        );
        assert_eq!(world.letters("billing").await, [], "{step:?}");

        world.probe.script(|_| Step::Ok);
        // There is room again: the pool has no other connection.
        pool.set_connect_options(SqliteConnectOptions::new().filename(world.database.path()));
        let mut conn = pool.acquire().await.expect("the connection");
        raw_sql("PRAGMA max_page_count = 1000000")
            .execute(&mut *conn)
            .await
            .expect("set");
        drop(conn);
        eventually("everything is done", || world.settled("billing")).await;
        handle.stop();
        let report = handle.join().await.expect("stopped");
        assert_eq!(
            (report.processed, report.failed, report.dead_lettered),
            (3, 0, 0),
            "{step:?}: {report}"
        );
        assert_eq!(world.letters("billing").await, [], "{step:?}");
        assert_eq!(world.database.number("SELECT count(*) FROM inbox_attempts").await, 0);
    }
}

/// There is room for every message but one: it blocks no other.
#[tokio::test]
async fn g09_a_message_that_never_fits_is_dead_lettered() {
    let world = Here::new().await;
    let pool = limited(&world, 30).await;
    world.publish("m1").await;
    world.publish("m2").await;
    world.probe.script(|call| match call.id.as_str() {
        "m1" => swallow(BIG, Step::Ok),
        _ => Step::Ok,
    });
    let mut inbox = world.builder(&["billing"]).store(pool).build().await.expect("an inbox");
    assert_eq!(next(&mut inbox).await, Outcome::DeadLettered);
    let letter = world.letter("billing").await;
    assert_eq!(letter.reason, DeadLetterReason::BrokenTransaction);
    assert!(letter.error.contains("full disk"), "{}", letter.error);
    world.assert_untouched("billing", "m1").await;
    assert_eq!(next(&mut inbox).await, Outcome::Processed);
    world.assert_done("billing", "m2").await;
}

/// The same, where the handler says so: the disk has room for others, so that it ends like any failure.
#[tokio::test]
async fn g09_a_message_that_never_fits_and_says_so_is_dead_lettered() {
    let world = Here::new().await;
    let pool = limited(&world, 30).await;
    world.publish("m1").await;
    world.publish("m2").await;
    world.probe.script(|call| match call.id.as_str() {
        "m1" => Step::Exec(BIG),
        _ => Step::Ok,
    });
    let inbox = world.builder(&["billing"]).store(pool).spawn().await.expect("an inbox");
    eventually("both are settled", async || inbox.report().acked == 2).await;
    inbox.stop();
    let report = inbox.join().await.expect("stopped");
    assert_eq!((report.processed, report.dead_lettered), (1, 1), "{report}");
    assert_eq!(world.letter("billing").await.reason, DeadLetterReason::Exhausted);
    world.assert_untouched("billing", "m1").await;
    world.assert_done("billing", "m2").await;
}

/// The row that a probe writes is deleted afterwards.
#[tokio::test]
async fn g09_a_probe_leaves_nothing() {
    let world = Here::new().await;
    world.publish("m1").await;
    world.probe.script(|_| swallow("ROLLBACK", Step::Ok));
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::DeadLettered);
    assert_eq!(world.database.number("SELECT count(*) FROM inbox_events").await, 0);
}

/// How a file is lost under a program.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Deleted,
    Replaced,
    LogDeleted,
}

impl Loss {
    /// Returns where what was there is now.
    fn happen(self, world: &Here) -> (PathBuf, PathBuf) {
        let mut path = world.database.path();
        if matches!(self, Self::LogDeleted) {
            path.set_file_name("app.db-wal");
        }
        let aside = path.with_file_name("aside");
        fs::rename(&path, &aside).expect("moved");
        if matches!(self, Self::Replaced) {
            fs::copy(&aside, &path).expect("copied");
        }
        (path, aside)
    }

    const fn text(self) -> &'static str {
        match self {
            Self::Deleted => "app.db was deleted or moved",
            Self::Replaced => "app.db was replaced",
            Self::LogDeleted => "app.db-wal was deleted or moved",
        }
    }
}

const LOSSES: [Loss; 3] = [Loss::Deleted, Loss::Replaced, Loss::LogDeleted];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g10_a_file_that_is_deleted_or_replaced_is_noticed() {
    for group in ["billing", "at-least-once", "at-most-once"] {
        for loss in LOSSES {
            let world = Here::new().await;
            let handle = world.builder(&[group]).spawn().await.expect("an inbox");
            world.publish("m0").await;
            eventually("the first is done", async || {
                world.database.effects(group, "m0").await == 1
            })
            .await;
            eventually("and acknowledged", async || handle.report().acked == 1).await;
            let (path, aside) = loss.happen(&world);
            world.publish("m1").await;
            not_ready(&handle, loss.text()).await;
            let health = handle.health();
            assert!(health.reasons[0].contains("restart the program"), "{health:?}");
            let report = handle.report();
            assert_eq!(
                (report.acked, report.dead_lettered),
                (1, 0),
                "{group}, {loss:?}: {report}"
            );
            assert_eq!(world.probe.runs(group, "m1"), 0, "{group}, {loss:?}");

            fs::rename(aside, path).expect("put back");
            // The pool may have a connection to what was there meanwhile.
            let effects = format!("SELECT count(*) FROM effects WHERE grp = '{group}' AND msg_id = 'm1'");
            eventually("the next is done", async || {
                world.database.seen_by_others(&effects).await == 1
            })
            .await;
            eventually("and acknowledged", || world.settled(group)).await;
            handle.stop();
            handle.join().await.expect("stopped");
        }
    }
}

/// While the handler runs, so that only the commit is lost.
#[tokio::test]
async fn g10_a_commit_to_a_file_that_was_deleted_is_not_acknowledged() {
    for loss in LOSSES {
        let world = Here::new().await;
        world.publish("m1").await;
        let gone = world.clone();
        world.probe.script(move |_| {
            loss.happen(&gone);
            Step::Ok
        });
        let mut inbox = world.inbox(&["billing"]).await;
        assert_eq!(next(&mut inbox).await, Outcome::Deferred, "{loss:?}");
        assert_eq!(inbox.report().acked, 0, "{loss:?}");
        assert!(!world.settled("billing").await, "{loss:?}");
    }
}

/// Nor is a message acknowledged whose dead letter was written to a deleted file.
#[tokio::test]
async fn g10_a_dead_letter_in_a_file_that_was_deleted_is_not_acknowledged() {
    for loss in LOSSES {
        let world = Here::new().await;
        world.publish("m1").await;
        let gone = world.clone();
        world.probe.script(move |_| {
            loss.happen(&gone);
            Step::Permanent("for good")
        });
        let mut inbox = world.inbox(&["billing"]).await;
        assert_eq!(next(&mut inbox).await, Outcome::Deferred, "{loss:?}");
        assert_eq!(inbox.report().acked, 0, "{loss:?}");
    }
}

/// A later connection creates another log, so that one exists: what is committed to the old one is lost all the same.
#[tokio::test]
async fn g10_a_log_that_was_recreated_is_not_taken_for_the_old_one() {
    let world = Here::new().await;
    world.publish("m1").await;
    let gone = world.clone();
    world.probe.script(move |_| {
        let (path, _) = Loss::LogDeleted.happen(&gone);
        fs::write(path, "").expect("recreated");
        Step::Ok
    });
    let mut inbox = world.inbox(&["billing"]).await;
    assert_eq!(next(&mut inbox).await, Outcome::Deferred);
    assert_eq!(inbox.report().acked, 0);
}

/// A file that the first connection makes is no other one than that which was opened.
#[tokio::test]
async fn g10_a_file_that_is_made_at_the_start_is_fine() {
    let world = Here::new().await;
    let options = SqliteConnectOptions::new()
        .filename(world.database.path().with_file_name("new.db"))
        .create_if_missing(true);
    let pool = SqlitePoolOptions::new().connect_lazy_with(options);
    world.publish("m1").await;
    let handle = world
        .builder(&["billing"])
        .store(pool.clone())
        .spawn()
        .await
        .expect("an inbox");
    query("CREATE TABLE effects (grp TEXT NOT NULL, msg_id TEXT NOT NULL)")
        .execute(&pool)
        .await
        .expect("a table");
    eventually("it is done", || world.settled("billing")).await;
    tokio::time::timeout(super::HANG, async {
        handle.stop();
        handle.join().await.expect("stopped");
    })
    .await
    .expect("stopped in time");
}
