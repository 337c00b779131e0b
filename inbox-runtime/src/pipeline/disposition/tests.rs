use super::*;
use AckStrategy::{AtLeastOnce, AtMostOnce, ExactlyOnce, OnPersist};

/// The attempt that fails: one of several, the last one, one of an unlimited number.
const FAILED_ATTEMPTS: [(u32, Option<u32>); 3] = [(1, Some(3)), (3, Some(3)), (1000, None)];

/// What a message may come to, and what is known of it once it is asked for.
struct Case {
    name: &'static str,
    end: fn() -> End,
    facts: fn(&mut Facts),
    /// What is asked for, then the fate: under exactly_once, at_least_once, on_persist and at_most_once. `counted` stands for
    /// what follows from a failure that counts as an attempt.
    expected: [&'static str; 4],
}

const fn case(name: &'static str, end: fn() -> End, expected: [&'static str; 4]) -> Case {
    Case {
        name,
        end,
        facts: |_| {},
        expected,
    }
}

impl Case {
    const fn with(mut self, facts: fn(&mut Facts)) -> Self {
        self.facts = facts;
        self
    }
}

const OURS: Fingerprint = Fingerprint::from_i64(7 << 32 | 1);
const OTHER_PAYLOAD: Fingerprint = Fingerprint::from_i64(7 << 32 | 2);
const OTHER_SUBJECT: Fingerprint = Fingerprint::from_i64(8 << 32 | 1);

fn outage(facts: &mut Facts) {
    facts.probe = Some(Err("no connection".to_owned()));
}

fn handled(facts: &mut Facts) {
    facts.inbox_row = Some(InboxRow::Present(OURS));
}

fn handled_with_other_subject(facts: &mut Facts) {
    facts.inbox_row = Some(InboxRow::Present(OTHER_SUBJECT));
}

fn redelivered(facts: &mut Facts) {
    facts.redelivered = true;
}

fn strike(on_strike: OnStrike, facts: &mut Facts) {
    (facts.on_strike, facts.strikes) = (Some(on_strike), 4);
}

fn error() -> HandlerError {
    HandlerError::from("no")
}

fn permanent() -> HandlerError {
    HandlerError::permanent("no")
}

fn retry_after() -> HandlerError {
    HandlerError::retry_after(Duration::from_secs(60), "not now")
}

fn committed(handled: Handled) -> End {
    End::Tx(TxOutcome::Committed(handled))
}

fn exhausted() -> End {
    End::Exhausted {
        attempts: 3,
        error: why(),
    }
}

fn rejected() -> End {
    End::Rejected(RejectionText {
        error: "no id".to_owned(),
        logged: "no id".to_owned(),
    })
}

fn why() -> String {
    "why".to_owned()
}

const DISCARD: &str = "fail, already acked";
const OUTAGE: &str = "probe; defer, retry in place after outage(2)";
const LOCKED: &str = "probe; lock, nak after backoff(2)";
const UNCOUNTED: &str = "probe; defer, nak after backoff(1)";
const IN_PLACE: &str = "probe; strike; defer, retry in place after outage(2)";
const NAKKED: &str = "probe; strike; defer, nak after backoff(4)";
const PERSISTED: &str = "dead-letter persisted";
const REJECTED: &str = "dead-letter rejected";
const PERMANENT: &str = "dead-letter permanent";
const EXHAUSTED: &str = "dead-letter exhausted";

#[rustfmt::skip]
fn table() -> Vec<Case> {
    use TxOutcome as Tx;
    let mut table = vec![
        // name, end                                                        exactly_once, at_least_once, on_persist, at_most_once
        case("committed", || committed(Handled::Processed),
            ["process, ack", "process, ack", "process, ack", "process, already acked"]),
        case("committed, redelivered", || committed(Handled::Processed),
            ["process, ack", "process, ack again", "process, ack again", "process, already acked"]).with(redelivered),
        case("skipped", || committed(Handled::Skipped),
            ["skip, ack", "skip, ack", "skip, ack", "skip, already acked"]),
        case("claimed by the handler itself", || committed(Handled::Duplicate),
            ["duplicate, ack", "duplicate, ack", "duplicate, ack", "duplicate, already acked"]),
        case("duplicate", || End::Tx(Tx::Duplicate(OURS)), ["duplicate, ack again"; 4]),
        case("duplicate, another payload", || End::Tx(Tx::Duplicate(OTHER_PAYLOAD)), ["duplicate, ack again"; 4]),
        case("id reused", || End::Tx(Tx::Duplicate(OTHER_SUBJECT)), ["dead-letter id_reused"; 4]),

        case("failed", || End::Tx(Tx::Failed(error())), ["counted", "counted", PERSISTED, DISCARD]),
        case("failed, retry after", || End::Tx(Tx::Failed(retry_after())),
            ["counted after 60s", "counted after 60s", PERSISTED, DISCARD]),
        case("failed for good", || End::Tx(Tx::Failed(permanent())), [PERMANENT, PERMANENT, PERSISTED, DISCARD]),
        case("stale connection", || End::Tx(Tx::StaleConnection(error())), ["counted", "counted", PERSISTED, DISCARD]),
        case("transaction broken", || End::Tx(Tx::TxBroken(why())), ["dead-letter broken_transaction"; 4]),
        case("unstorable", || End::Tx(Tx::Unstorable(why())), [REJECTED; 4]),
        case("locked", || End::Tx(Tx::Locked(why())), [LOCKED, LOCKED, LOCKED, DISCARD]),
        case("locked, outage", || End::Tx(Tx::Locked(why())), [OUTAGE, OUTAGE, OUTAGE, DISCARD]).with(outage),
        case("suspected outage, failed for good", || End::Tx(Tx::SuspectedOutage(permanent())),
            ["probe; dead-letter permanent", "probe; dead-letter permanent", "probe; dead-letter persisted", DISCARD]),
        case("suspected outage, retry after", || End::Tx(Tx::SuspectedOutage(retry_after())),
            ["probe; counted after 60s", "probe; counted after 60s", "probe; dead-letter persisted", DISCARD]),

        case("rejected", rejected, ["look up; dead-letter rejected", REJECTED, REJECTED, REJECTED]),
        case("rejected, handled before", rejected,
            ["look up; duplicate, ack again", REJECTED, REJECTED, REJECTED]).with(handled),
        case("rejected, id reused", rejected,
            ["look up; dead-letter id_reused", REJECTED, REJECTED, REJECTED]).with(handled_with_other_subject),
        case("undecodable", || End::Undecodable(error()), ["look up; counted", "counted", PERSISTED, REJECTED]),
        case("undecodable, handled before", || End::Undecodable(error()),
            ["look up; duplicate, ack again", "counted", PERSISTED, REJECTED]).with(handled),
        case("exhausted", exhausted, ["look up; dead-letter exhausted", EXHAUSTED, EXHAUSTED, EXHAUSTED]),
        case("exhausted, handled before", exhausted,
            ["look up; duplicate, ack again", EXHAUSTED, EXHAUSTED, EXHAUSTED]).with(handled),
        case("dead-lettered before", || End::AlreadyDeadLettered, ["dead-letter, ack again"; 4]),

        case("busy", || End::Busy(why()), [LOCKED; 4]),
        case("busy, outage", || End::Busy(why()), [OUTAGE; 4]).with(outage),
        case("lease lost", || End::LeaseLost, ["lock, nak after 0ns"; 4]),
        case("lease lost at the acknowledgement", || End::LeaseLostAtAck(why()), ["lock, already acked"; 4]),
        case("acknowledgement failed", || End::AckFailed(why()), ["defer, retry in place after outage(2)"; 4]),
        case("step failed", || End::StepFailed(why()), [UNCOUNTED; 4]),
        case("step failed, after strikes", || End::StepFailed(why()),
            ["probe; defer, nak after backoff(5)"; 4]).with(|facts| facts.strikes = 5),
        case("step failed, outage", || End::StepFailed(why()), [OUTAGE; 4]).with(outage),

        case("dead-lettered", || End::DeadLettered, ["dead-letter, ack"; 4]),
        case("dead-lettered, redelivered", || End::DeadLettered,
            ["dead-letter, ack", "dead-letter, ack again", "dead-letter, ack again", "dead-letter, ack"]).with(redelivered),
        case("dead letter failed", || dead_letter_failed(DeadLetterReason::BrokenTransaction),
            [UNCOUNTED, UNCOUNTED, UNCOUNTED, DISCARD]),
        case("dead letter failed, outage", || dead_letter_failed(DeadLetterReason::Exhausted),
            [OUTAGE, OUTAGE, OUTAGE, DISCARD]).with(outage),
        case("dead letter of a rejected message failed", || dead_letter_failed(DeadLetterReason::Rejected), [UNCOUNTED; 4]),
        case("replay lease lost", || End::ReplayLeaseLost, ["lock, already acked"; 4]),
    ];
    table.extend(suspect("connection lost", || End::Tx(Tx::ConnectionLost(why()))));
    table.extend(suspect("retry", || End::Tx(Tx::RetryTx(why()))));
    table.extend(suspect("deployment fault", || End::Tx(Tx::DeploymentFault(error()))));
    table.extend(suspect("suspected outage", || End::Tx(Tx::SuspectedOutage(error()))));
    table
}

/// An end whose cause may be the message or an outage.
#[rustfmt::skip]
fn suspect(name: &'static str, end: fn() -> End) -> [Case; 4] {
    [
        case(name, end, [OUTAGE, OUTAGE, OUTAGE, DISCARD]).with(outage),
        case(name, end, [IN_PLACE, IN_PLACE, IN_PLACE, DISCARD]).with(|facts| strike(OnStrike::RetryInPlace, facts)),
        case(name, end, [NAKKED, NAKKED, NAKKED, DISCARD]).with(|facts| strike(OnStrike::Nak, facts)),
        case(name, end, [
            "probe; strike; counted", "probe; strike; counted", "probe; strike; dead-letter persisted", DISCARD,
        ]).with(|facts| strike(OnStrike::Count, facts)),
    ]
}

fn dead_letter_failed(reason: DeadLetterReason) -> End {
    End::DeadLetterFailed {
        reason,
        error: why(),
        cause: why(),
    }
}

/// Decides as `resolve` does, with the facts that `known` has; returns what is asked for on the way, and the fate.
fn fate(end: &End, policy: Policy, known: &Facts) -> String {
    let mut facts = Facts {
        inbox_row: None,
        probe: None,
        on_strike: None,
        attempts: None,
        ..known.clone()
    };
    let mut steps = Vec::new();
    loop {
        assert!(steps.len() < 5, "it comes to no end: {steps:?}");
        match decide(end, policy, &facts) {
            Decision::LookUp => {
                steps.push("look up".to_owned());
                facts.inbox_row = known.inbox_row;
            }
            Decision::Probe => {
                steps.push("probe".to_owned());
                facts.probe.clone_from(&known.probe);
            }
            Decision::Strike(fault) => {
                assert_eq!(fault, fault_of(end));
                steps.push("strike".to_owned());
                facts.on_strike = known.on_strike;
            }
            Decision::RecordFailure => {
                steps.push("record failure".to_owned());
                facts.attempts = known.attempts;
            }
            Decision::DeadLetter(reason) => {
                steps.push(format!("dead-letter {reason}"));
                return steps.join("; ");
            }
            Decision::Settle(disposition) => {
                steps.push(text_of(disposition));
                return steps.join("; ");
            }
        }
    }
}

fn fault_of(end: &End) -> Fault {
    match end {
        End::Tx(TxOutcome::ConnectionLost(_)) => Fault::ConnectionLost,
        End::Tx(TxOutcome::RetryTx(_) | TxOutcome::SuspectedOutage(_)) => Fault::SuspectedOutage,
        End::Tx(TxOutcome::DeploymentFault(_)) => Fault::Deployment,
        _ => panic!("no strike is due"),
    }
}

fn text_of(disposition: Disposition) -> String {
    let outcome = match disposition.outcome {
        Outcome::Processed => "process",
        Outcome::Skipped => "skip",
        Outcome::Duplicate => "duplicate",
        Outcome::Locked => "lock",
        Outcome::Failed => "fail",
        Outcome::DeadLettered => "dead-letter",
        Outcome::Deferred => "defer",
    };
    let delay = |delay| match delay {
        Delay::Fixed(delay) => format!("{delay:?}"),
        Delay::Backoff(attempts) => format!("backoff({attempts})"),
        Delay::Outage(deliveries) => format!("outage({deliveries})"),
    };
    let settlement = match disposition.settlement {
        Settlement::Ack => "ack".to_owned(),
        Settlement::AckAgain => "ack again".to_owned(),
        Settlement::AlreadyAcked => "already acked".to_owned(),
        Settlement::Nak(after) => format!("nak after {}", delay(after)),
        Settlement::RetryInPlace(after) => format!("retry in place after {}", delay(after)),
    };
    format!("{outcome}, {settlement}")
}

/// What follows from a failure that counts as an attempt.
fn counted(expected: &str, attempts: u32, max: Option<u32>) -> String {
    let is_last = max == Some(attempts);
    let after = |delay: &str| match is_last {
        true => "record failure; dead-letter exhausted".to_owned(),
        false => format!("record failure; fail, nak after {delay}"),
    };
    if let Some(start) = expected.strip_suffix("counted after 60s") {
        return format!("{start}{}", after("60s"));
    }
    match expected.strip_suffix("counted") {
        Some(start) => format!("{start}{}", after(&format!("backoff({attempts})"))),
        None => expected.to_owned(),
    }
}

#[test]
fn every_end_has_its_fate_under_every_strategy() {
    let mut wrong = Vec::new();
    for Case {
        name,
        end,
        facts: known,
        expected,
    } in table()
    {
        for (ack, expected) in [ExactlyOnce, AtLeastOnce, OnPersist, AtMostOnce]
            .into_iter()
            .zip(expected)
        {
            for (attempts, max_attempts) in FAILED_ATTEMPTS {
                let mut facts = Facts {
                    fingerprint: OURS,
                    redelivered: false,
                    deliveries: 2,
                    strikes: 0,
                    inbox_row: Some(InboxRow::Absent),
                    probe: Some(Ok(())),
                    on_strike: None,
                    attempts: Some(attempts),
                };
                known(&mut facts);
                let found = fate(&end(), Policy { ack, max_attempts }, &facts);
                let expected = counted(expected, attempts, max_attempts);
                if found != expected {
                    wrong.push(format!(
                        "{name}, {ack:?}, attempt {attempts} of {max_attempts:?}: {found}, not {expected}"
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The number of the end's kind. A new kind of end is an error here until it has a number, and a case in the table.
fn kind(end: &End) -> usize {
    match end {
        End::Tx(TxOutcome::Committed(_)) => 0,
        End::Tx(TxOutcome::Duplicate(_)) => 1,
        End::Tx(TxOutcome::Failed(_)) => 2,
        End::Tx(TxOutcome::TxBroken(_)) => 3,
        End::Tx(TxOutcome::Locked(_)) => 4,
        End::Tx(TxOutcome::Unstorable(_)) => 5,
        End::Tx(TxOutcome::RetryTx(_)) => 6,
        End::Tx(TxOutcome::StaleConnection(_)) => 7,
        End::Tx(TxOutcome::DeploymentFault(_)) => 8,
        End::Tx(TxOutcome::SuspectedOutage(_)) => 9,
        End::Tx(TxOutcome::ConnectionLost(_)) => 10,
        End::Rejected(_) => 11,
        End::Undecodable(_) => 12,
        End::Exhausted { .. } => 13,
        End::AlreadyDeadLettered => 14,
        End::Busy(_) => 15,
        End::LeaseLost => 16,
        End::LeaseLostAtAck(_) => 17,
        End::AckFailed(_) => 18,
        End::StepFailed(_) => 19,
        End::DeadLettered => 20,
        End::DeadLetterFailed { .. } => 21,
        End::ReplayLeaseLost => 22,
    }
}

#[test]
fn every_end_is_in_the_table() {
    let mut kinds: Vec<_> = table().iter().map(|case| kind(&(case.end)())).collect();
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(kinds, Vec::from_iter(0..=22));
}

#[test]
fn an_unknown_fingerprint_agrees_with_every_message() {
    let facts = Facts {
        fingerprint: OURS,
        redelivered: true,
        deliveries: 1,
        strikes: 0,
        inbox_row: None,
        probe: None,
        on_strike: None,
        attempts: None,
    };
    let end = End::Tx(TxOutcome::Duplicate(Fingerprint::UNKNOWN));
    let policy = Policy {
        ack: ExactlyOnce,
        max_attempts: Some(1),
    };
    assert_eq!(fate(&end, policy, &facts), "duplicate, ack again");
    assert_eq!(facts.duplicate_of(&end), Some(Fingerprint::UNKNOWN));
}

#[test]
fn a_delay_is_drawn_from_its_back_off() {
    let backoff = Backoff {
        first: Duration::from_millis(1),
        max: Duration::from_millis(4),
    };
    assert_eq!(
        Delay::Fixed(Duration::from_secs(9)).draw(backoff),
        Duration::from_secs(9)
    );
    assert!(Delay::Backoff(9).draw(backoff) <= backoff.max);
    assert!(Delay::Outage(1).draw(backoff) <= OUTAGE_BACKOFF.first);
}
