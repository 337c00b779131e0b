//! A process is killed at every point on the path of a message, and another one continues: what is there then.
//!
//! Needs `--features failpoints`; without it the tests are listed as ignored.

use std::{ops::Deref, time::Duration};

use futures_util::StreamExt;
use inbox_runtime::Message;
use inbox_tests::{
    Settled, TestBroker, TestDatabase, World,
    crashes::{Row, Seen, headings},
    eventually,
    process::{Mode, Signal, WorkerCommand, long},
    process_suite,
};

/// How long the broker waits for a process that was killed.
const ACK_WAIT: Duration = Duration::from_millis(500);

/// A row of the table, played with processes.
#[derive(Clone, Debug)]
struct Play(Row);

impl Deref for Play {
    type Target = Row;

    fn deref(&self) -> &Row {
        &self.0
    }
}

impl Play {
    /// Plays it through.
    async fn play<B: TestBroker, D: TestDatabase>(self) {
        let world = World::<B, D>::new().await;
        if self.message == "bad" {
            world.broker.publish(Message::new("order.created", "{").id("m1")).await;
        } else {
            world.publish("m1").await;
        }
        world.publish("m2").await;

        let mut runs = 0;
        let (last, first) = self.points.split_last().expect("a point");
        for point in first {
            runs += self.kill(&world, point).await;
        }
        // Where the broker doesn't count deliveries, the first one counts as a redelivery, whose attempt is written first.
        let counted_first = !B::COUNTS && self.group != "at-most-once";
        if self.left.is_some() || (counted_first && *last == "before_attempt") {
            runs += self.kill(&world, last).await;
        }
        if let Some(left) = self.left {
            let found = self.left(&world).await;
            let expected = match (B::ACKS_AT_ONCE, self.group) {
                // A worker goes on before an acknowledgement is confirmed, since a redelivery is deduplicated: another
                // message may be without its acknowledgement yet, or have it with this one's.
                (true, "billing") => left.saturating_sub(u64::from(*last == "after_ack"))..=2,
                (true, _) => left..=left,
                (false, _) => left..=2,
            };
            assert!(
                expected.contains(&found),
                "{found} left at the broker after the kill: {self:#?}"
            );
            assert_eq!(self.seen(&world).await, self.killed, "after the kill: {self:#?}");
            runs += self.finish(&world, None).await;
        } else if counted_first && *last == "before_attempt" {
            runs += self.finish(&world, None).await;
        } else {
            runs += self.finish(&world, Some(last)).await;
        }
        let mut ended = self.seen(&world).await;
        // Without a claim, a message whose acknowledgement was lost with its process is handled twice.
        let repeats = !B::ACKS_AT_ONCE && ["at-least-once", "on-persist"].contains(&self.group);
        if repeats && ended.effects == self.ended.effects + 1 {
            ended.effects -= 1;
        }
        assert_eq!(ended, self.ended, "in the end: {self:#?}");
        // The attempt of a first delivery that was written first is one less in the end.
        let expected = self.runs.saturating_sub(usize::from(counted_first))..=self.runs + usize::from(repeats);
        assert!(expected.contains(&runs), "{runs} runs: {self:#?}");
        // The message behind it is handled whatever became of the first one, and leaves no attempts.
        assert_eq!(world.database.effects(self.group, "m2").await, 1, "{self:#?}");
        assert_eq!(
            world.database.inbox(self.group, "m2").await,
            i64::from(self.group == "billing"),
            "{self:#?}"
        );
        if self.ended.letters == 0 {
            assert_eq!(
                world.database.number("SELECT count(*) FROM inbox_attempts").await,
                0,
                "{self:#?}"
            );
        }
    }

    /// One process that is killed at that point, and the time after which its leases have run out. Returns how often it
    /// ran the first message.
    async fn kill<B: TestBroker, D: TestDatabase>(&self, world: &World<B, D>, point: &str) -> usize {
        let killed = self.worker(world).ack_wait(ACK_WAIT).kill_at(point).start().end().await;
        assert!(killed.killed_by(Signal::KILL), "{self:#?}: {killed:#?}");
        // All of them, so that the next process gets the messages in their order.
        tokio::time::sleep(ACK_WAIT + Duration::from_millis(50)).await;
        killed.runs(self.group, "m1")
    }

    /// One process that runs until everything is settled.
    async fn finish<B: TestBroker, D: TestDatabase>(&self, world: &World<B, D>, point: Option<&str>) -> usize {
        let worker = self.worker(world);
        let worker = match point {
            Some(point) => worker.kill_at(point),
            None => worker,
        };
        let mut worker = worker.start();
        worker.says("ready").await;
        eventually("everything is settled", || world.settled(self.group)).await;
        worker.stop().await.runs(self.group, "m1")
    }

    fn worker<B: TestBroker, D: TestDatabase>(&self, world: &World<B, D>) -> WorkerCommand {
        WorkerCommand::on(env!("CARGO_BIN_EXE_worker"), Mode::Run, world, self.group)
            .in_place(world, "the-only-one")
            .script(match self.message {
                "fail" => "m1=fail",
                _ => "ok",
            })
    }

    async fn left<B: TestBroker, D: TestDatabase>(&self, world: &World<B, D>) -> u64 {
        let settled = world.broker.settled(self.group, "order.created").await;
        let Settled { waiting, unacked } = settled.expect("the group's consumer");
        waiting + unacked
    }

    async fn seen<B: TestBroker, D: TestDatabase>(&self, world: &World<B, D>) -> Seen {
        let letters = "SELECT count(*) FROM inbox_dead_letters WHERE message_id = 'm1'";
        Seen {
            effects: world.database.effects(self.group, "m1").await,
            inbox: world.database.inbox(self.group, "m1").await,
            letters: world.database.number(letters).await,
        }
    }
}

/// The rows under that heading, several at a time: most of their time is waiting.
async fn section<B: TestBroker, D: TestDatabase>(heading: &str) {
    let rows: Vec<_> = Row::section(heading).into_iter().map(Play).collect();
    let rounds = if long() { 20 } else { 1 };
    let rows = (0..rounds).flat_map(|_| rows.clone());
    futures_util::stream::iter(rows)
        .map(Play::play::<B, D>)
        .buffer_unordered(4)
        .collect::<()>()
        .await;
}

macro_rules! sections {
    ($($name:ident),+ $(,)?) => {
        $(
            async fn $name<B: TestBroker, D: TestDatabase>() {
                section::<B, D>(stringify!($name)).await;
            }
        )+

        process_suite!($(
            #[cfg_attr(not(feature = "failpoints"), ignore = "needs --features failpoints")]
            $name
        ),+);

        #[test]
        fn every_section_of_the_table_is_a_test() {
            assert_eq!(headings(), [$(stringify!($name)),+]);
        }
    };
}

sections!(
    f19_a2c_a6_b7_killed_before_the_commit_it_is_as_if_nothing_had_been,
    f40_a2c_killed_after_the_commit_it_is_a_duplicate,
    f19_a_failing_message_is_a_dead_letter_wherever_the_process_dies,
    i5_at_least_once_repeats_what_was_not_acknowledged,
    i5_on_persist_has_the_failure_on_record_before_it_acknowledges,
    b5_at_most_once_loses_what_it_had_acknowledged_and_never_repeats,
);
