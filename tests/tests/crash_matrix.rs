//! A process is killed at every point on the path of a message, and another one goes on: what is there then.
//!
//! Needs `--features failpoints`; without it the tests are listed as ignored.

use std::time::Duration;

use futures_util::StreamExt;
use inbox_runtime::Message;
use inbox_tests::{
    Settled, TestBroker, TestDatabase, World, eventually,
    process::{Mode, Signal, WorkerCommand, long},
    process_suite,
};

/// What must be seen, row by row; the heading of a section is the name of its test.
///
/// There are two messages, and the row is about the first. The handler of the group succeeds (`ok`), always `fail`s (its
/// `max_attempts` is 3 under exactly_once and at_least_once), or can't decode the message (`bad`). One process is killed
/// at the first point, the next one at the second point. Then a last process finishes. `left` is what the broker keeps
/// of both messages; where it is `-` the last point isn't on the path, so nobody is killed there. Each number but `left`
/// and `runs` is there for the first message after the last kill, then in the end.
///
/// The first attempt is not written before it is made, only those of redeliveries are.
const TABLE: &str = "
#              message  killed at                          left effects inbox letters   effects inbox letters runs

[f19_a2c_a6_b7_killed_before_the_commit_it_is_as_if_nothing_had_been]
exactly-once   ok       after_decode                       2    0       0     0         1       1     0       1
exactly-once   ok       after_begin                        2    0       0     0         1       1     0       1
exactly-once   ok       after_claim                        2    0       0     0         1       1     0       1
exactly-once   ok       in_handler                         2    0       0     0         1       1     0       2
exactly-once   ok       before_seal                        2    0       0     0         1       1     0       2
exactly-once   ok       before_commit                      2    0       0     0         1       1     0       2
exactly-once   ok       in_handler,before_attempt          2    0       0     0         1       1     0       2
exactly-once   ok       in_handler,after_attempt           2    0       0     0         1       1     0       2
exactly-once   ok       in_handler,before_commit           2    0       0     0         1       1     0       3

[f40_a2c_killed_after_the_commit_it_is_a_duplicate]
exactly-once   ok       after_commit                       2    1       1     0         1       1     0       1
exactly-once   ok       before_ack                         2    1       1     0         1       1     0       1
exactly-once   ok       after_ack                          1    1       1     0         1       1     0       1
exactly-once   ok       after_commit,before_attempt        2    1       1     0         1       1     0       1
exactly-once   ok       after_commit,after_attempt         2    1       1     0         1       1     0       1
exactly-once   ok       after_commit,before_ack            2    1       1     0         1       1     0       1
exactly-once   ok       before_attempt                     -    1       1     0         1       1     0       1
exactly-once   ok       in_dead_letter                     -    1       1     0         1       1     0       1

[f19_a_failing_message_is_a_dead_letter_wherever_the_process_dies]
exactly-once   fail     after_claim                        2    0       0     0         0       0     1       3
exactly-once   fail     in_handler                         2    0       0     0         0       0     1       4
exactly-once   fail     before_seal                        2    0       0     0         0       0     1       4
exactly-once   fail     before_attempt                     1    0       0     0         0       0     1       3
exactly-once   fail     after_attempt                      1    0       0     0         0       0     1       2
exactly-once   fail     in_dead_letter                     1    0       0     0         0       0     1       3
exactly-once   fail     in_dead_letter,before_attempt      1    0       0     0         0       0     1       3
exactly-once   fail     in_dead_letter,before_ack          1    0       0     1         0       0     1       3
exactly-once   fail     in_dead_letter,after_ack           0    0       0     1         0       0     1       3
exactly-once   bad      in_dead_letter                     2    0       0     0         0       0     1       0
exactly-once   bad      in_dead_letter,before_attempt      2    0       0     0         0       0     1       0
exactly-once   bad      before_ack                         2    0       0     1         0       0     1       0
exactly-once   bad      after_ack                          1    0       0     1         0       0     1       0

[i5_at_least_once_repeats_what_was_not_acknowledged]
at-least-once  ok       after_decode                       2    0       0     0         1       0     0       1
at-least-once  ok       after_begin                        2    0       0     0         1       0     0       1
at-least-once  ok       after_claim                        -    1       0     0         1       0     0       1
at-least-once  ok       in_handler                         2    0       0     0         1       0     0       2
at-least-once  ok       before_seal                        2    0       0     0         1       0     0       2
at-least-once  ok       before_commit                      2    0       0     0         1       0     0       2
at-least-once  ok       after_commit                       2    1       0     0         2       0     0       2
at-least-once  ok       before_ack                         2    1       0     0         2       0     0       2
at-least-once  ok       after_ack                          1    1       0     0         1       0     0       1
at-least-once  ok       in_handler,before_attempt          2    0       0     0         1       0     0       2
at-least-once  ok       in_handler,after_attempt           2    0       0     0         1       0     0       2
at-least-once  fail     in_handler                         2    0       0     0         0       0     1       4
at-least-once  fail     before_attempt                     1    0       0     0         0       0     1       3
at-least-once  fail     after_attempt                      1    0       0     0         0       0     1       2
at-least-once  fail     in_dead_letter                     1    0       0     0         0       0     1       3
at-least-once  bad      in_dead_letter                     2    0       0     0         0       0     1       0

[i5_on_persist_has_the_failure_on_record_before_it_acknowledges]
on-persist     ok       after_decode                       2    0       0     0         1       0     0       1
on-persist     ok       after_begin                        2    0       0     0         1       0     0       1
on-persist     ok       after_claim                        -    1       0     0         1       0     0       1
on-persist     ok       in_handler                         2    0       0     0         1       0     0       2
on-persist     ok       before_seal                        2    0       0     0         1       0     0       2
on-persist     ok       before_commit                      2    0       0     0         1       0     0       2
on-persist     ok       after_commit                       2    1       0     0         2       0     0       2
on-persist     ok       before_ack                         2    1       0     0         2       0     0       2
on-persist     ok       after_ack                          1    1       0     0         1       0     0       1
on-persist     ok       in_handler,before_attempt          2    0       0     0         1       0     0       2
on-persist     ok       in_handler,after_attempt           2    0       0     0         1       0     0       2
on-persist     fail     in_handler                         2    0       0     0         0       0     1       2
on-persist     fail     before_seal                        2    0       0     0         0       0     1       2
on-persist     fail     in_dead_letter                     2    0       0     0         0       0     1       2
on-persist     fail     before_ack                         2    0       0     1         0       0     1       1
on-persist     fail     after_ack                          1    0       0     1         0       0     1       1
on-persist     fail     before_attempt                     -    0       0     1         0       0     1       1
on-persist     fail     in_dead_letter,after_attempt       2    0       0     0         0       0     1       2
on-persist     bad      in_dead_letter                     2    0       0     0         0       0     1       0

[b5_at_most_once_loses_what_it_had_acknowledged_and_never_repeats]
at-most-once   ok       after_decode                       2    0       0     0         1       0     0       1
at-most-once   ok       before_ack                         2    0       0     0         1       0     0       1
at-most-once   ok       after_ack                          1    0       0     0         0       0     0       0
at-most-once   ok       after_begin                        1    0       0     0         0       0     0       0
at-most-once   ok       after_claim                        -    1       0     0         1       0     0       1
at-most-once   ok       in_handler                         1    0       0     0         0       0     0       1
at-most-once   ok       before_seal                        1    0       0     0         0       0     0       1
at-most-once   ok       before_commit                      1    0       0     0         0       0     0       1
at-most-once   ok       after_commit                       1    1       0     0         1       0     0       1
at-most-once   ok       after_decode,before_attempt        -    1       0     0         1       0     0       1
at-most-once   fail     before_seal                        1    0       0     0         0       0     0       1
at-most-once   fail     in_dead_letter                     -    0       0     0         0       0     0       1
at-most-once   bad      in_dead_letter                     2    0       0     0         0       0     1       0
";

/// How long the broker waits for a process that was killed.
const ACK_WAIT: Duration = Duration::from_millis(500);

/// What there is of the first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    effects: i64,
    inbox: i64,
    letters: i64,
}

#[derive(Clone, Debug)]
struct Row {
    group: &'static str,
    message: &'static str,
    points: Vec<&'static str>,
    /// What the broker keeps of both messages after the last kill; `None` if the last point isn't on the path.
    left: Option<u64>,
    killed: Seen,
    ended: Seen,
    runs: usize,
}

impl Row {
    fn parse(line: &'static str) -> Self {
        let mut words = line.split_whitespace();
        let mut word = || words.next().expect(line);
        let (group, message, points, left) = (word(), word(), word(), word());
        let mut number = || word().parse::<i64>().expect(line);
        let mut seen = || Seen {
            effects: number(),
            inbox: number(),
            letters: number(),
        };
        Self {
            group: if group == "exactly-once" { "billing" } else { group },
            message,
            points: points.split(',').collect(),
            left: left.parse().ok(),
            killed: seen(),
            ended: seen(),
            runs: word().parse().expect(line),
        }
    }

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
        if let Some(left) = self.left {
            runs += self.kill(&world, last).await;
            assert_eq!(
                self.left(&world).await,
                left,
                "left at the broker after the kill: {self:#?}"
            );
            assert_eq!(self.seen(&world).await, self.killed, "after the kill: {self:#?}");
            runs += self.finish(&world, None).await;
        } else {
            runs += self.finish(&world, Some(last)).await;
        }
        assert_eq!(self.seen(&world).await, self.ended, "in the end: {self:#?}");
        assert_eq!(runs, self.runs, "runs: {self:#?}");
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

    /// One process that goes on until everything is settled.
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
        WorkerCommand::on(env!("CARGO_BIN_EXE_worker"), Mode::Run, world, self.group).script(match self.message {
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
    let lines = TABLE
        .lines()
        .skip_while(|line| line.trim_matches(['[', ']']) != heading)
        .skip(1);
    let rows: Vec<Row> = lines.take_while(|line| !line.is_empty()).map(Row::parse).collect();
    assert!(!rows.is_empty(), "no rows for {heading}");
    let rounds = if long() { 20 } else { 1 };
    let rows = (0..rounds).flat_map(|_| rows.clone());
    futures_util::stream::iter(rows)
        .map(Row::play::<B, D>)
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
            let headings: Vec<_> = TABLE.lines().filter_map(|line| line.strip_prefix('[')?.strip_suffix(']')).collect();
            assert_eq!(headings, [$(stringify!($name)),+]);
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
