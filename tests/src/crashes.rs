//! What a process leaves behind that dies at a point on the path of a message: one table, for the tests that kill a process
//! and for those that let a harness crash.

/// What must be seen, row by row; the heading of a section is the name of its test.
///
/// There are two messages, and the row is about the first. The handler of the group succeeds (`ok`), always `fail`s (its
/// `max_attempts` is 3 under exactly_once and at_least_once), or can't decode the message (`bad`). One process is killed
/// at the first point, the next one at the second point. Then a last process finishes. `left` is what the broker keeps
/// of both messages; where it is `-` the last point isn't on the path, so nobody is killed there. Each number but `left`
/// and `runs` is there for the first message after the last kill, then in the end.
///
/// The first attempt is not written before it is made, only those of redeliveries are. One that the process died in is
/// counted if it was made alone, which it is when the one before it never came to an end.
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
exactly-once   fail     after_attempt                      1    0       0     0         0       0     1       3
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
at-least-once  fail     after_attempt                      1    0       0     0         0       0     1       3
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

/// What there is of the first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its effects.
    pub effects: i64,
    /// Its inbox rows.
    pub inbox: i64,
    /// Its dead letters.
    pub letters: i64,
}

/// A line of the table.
#[derive(Clone, Debug)]
pub struct Row {
    /// The group of the handler.
    pub group: &'static str,
    /// `ok`, `fail` or `bad`.
    pub message: &'static str,
    /// The points at which a process dies, one after the other.
    pub points: Vec<&'static str>,
    /// What the broker keeps of both messages after the last kill; `None` if the last point isn't on the path.
    pub left: Option<u64>,
    /// After the last kill.
    pub killed: Seen,
    /// In the end.
    pub ended: Seen,
    /// How often the handler ran the first message.
    pub runs: usize,
}

/// The headings of the table.
#[must_use]
pub fn headings() -> Vec<&'static str> {
    TABLE.lines().filter_map(heading).collect()
}

fn heading(line: &'static str) -> Option<&'static str> {
    line.strip_prefix('[')?.strip_suffix(']')
}

impl Row {
    /// The rows under that heading.
    ///
    /// # Panics
    ///
    /// When there are none.
    #[must_use]
    pub fn section(name: &str) -> Vec<Self> {
        let lines = TABLE.lines().skip_while(|line| heading(line) != Some(name)).skip(1);
        let rows: Vec<_> = lines.take_while(|line| !line.is_empty()).map(Self::parse).collect();
        assert!(!rows.is_empty(), "no rows for {name}");
        rows
    }

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
}
