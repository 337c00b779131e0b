//! The checks before anything is consumed. Each finds every problem of its kind.

use std::time::Duration;

use inbox_rules::subject_rules;

use crate::{
    broker::subject,
    extract::States,
    handler::{AckStrategy, HandlerMeta},
    inbox::erased::ErasedRegistration,
    outbox_mode::OutboxMode,
};

/// A handler as it is named in a problem.
fn handler(meta: &HandlerMeta) -> String {
    format!("handler `{}` ({})", meta.name, meta.place())
}

/// Checks that there is something to run: handlers, or an outbox to relay.
pub(crate) fn found(registered: usize, selected: usize, outbox: OutboxMode, problems: &mut Vec<String>) {
    if outbox == OutboxMode::Relay {
        return;
    }
    if registered == 0 {
        problems.push(
            "no handlers are registered; write a function with `#[inbox_handler(group = …, subject = …)]`, and name the \
             crate that has it in this program, or it is not linked: `inbox_runtime::link!(my_handlers);`; a program that only \
             relays an outbox says so by INBOX_OUTBOX=relay"
                .to_owned(),
        );
    } else if selected == 0 {
        problems.push(format!(
            "none of the {registered} registered handlers is selected; look at INBOX_GROUPS, `.groups(…)` and `.select(…)`"
        ));
    }
}

/// Checks that every group that was asked for is there.
pub(crate) fn groups(asked: &[String], all: &[&'static HandlerMeta], problems: &mut Vec<String>) {
    for group in asked
        .iter()
        .filter(|group| !all.iter().any(|meta| meta.group == group.as_str()))
    {
        let mut known: Vec<_> = all.iter().map(|meta| meta.group).collect();
        known.sort_unstable();
        known.dedup();
        problems.push(format!(
            "there is no handler of the group `{group}`; the groups are {}",
            known.join(", ")
        ));
    }
}

/// Checks that every handler that the program counts on is there.
pub(crate) fn expected(wanted: &[(String, String)], selected: &[&HandlerMeta], problems: &mut Vec<String>) {
    for (group, subject) in wanted {
        if !selected
            .iter()
            .any(|meta| meta.group == group && meta.subject == subject)
        {
            problems.push(format!(
                "no handler of the group `{group}` for `{subject}` is linked and selected, but the program expects one"
            ));
        }
    }
}

/// Checks one handler by itself, on the subject that it is to subscribe to.
pub(crate) fn one(
    entry: &dyn ErasedRegistration,
    meta: &HandlerMeta,
    subject: &str,
    transactional: bool,
    outbox: OutboxMode,
    states: &States,
    problems: &mut Vec<String>,
) {
    let mut found = Vec::new();
    found.extend(subject_rules::check_group(meta.group).err());
    found.extend(subject_rules::check_subject(subject).err());
    if meta.concurrency == 0 {
        found.push("its concurrency is 0; write at least 1".to_owned());
    }
    if meta.ordered && meta.concurrency > 1 {
        found.push("it is ordered, so it takes one message at a time; leave the concurrency at 1".to_owned());
    }
    found.extend(meta.stream.and_then(|stream| subject_rules::check_stream(stream).err()));
    if meta.ack == AckStrategy::ExactlyOnce && !transactional {
        found.push("exactly_once needs a transaction; take `&mut SqliteConnection`".to_owned());
    }
    if entry.publishes() && !outbox.has_handlers() {
        found.push(format!(
            "it takes an `Outbox`, but the program's outbox mode is `{}`; write `both` or `write` (INBOX_OUTBOX, or `.outbox(…)`)",
            outbox.as_str()
        ));
    }
    found.extend(entry.missing(states));
    problems.extend(found.into_iter().map(|problem| format!("{}: {problem}", handler(meta))));
}

/// Checks that a lease lasts: without any time, each message would be delivered again and again while it is handled.
pub(crate) fn ack_wait(ack_wait: Duration, problems: &mut Vec<String>) {
    if ack_wait.is_zero() {
        problems.push("`.ack_wait(…)` is zero; give the broker time for a sign of life, as in 30 s".to_owned());
    }
}

/// Checks that a pool has a connection for every worker, and one more for attempts and dead letters.
pub(crate) fn connections<'a>(
    database: &str,
    max: u32,
    metas: impl Iterator<Item = &'a HandlerMeta>,
) -> Option<String> {
    let metas: Vec<_> = metas.collect();
    let workers: u32 = metas.iter().map(|meta| meta.concurrency).sum();
    if metas.is_empty() || workers < max {
        return None;
    }
    let sum: Vec<_> = metas
        .iter()
        .map(|meta| format!("{} for `{}`", meta.concurrency, meta.name))
        .collect();
    Some(format!(
        "the {database} pool has at most {max} connections, but the handlers may hold {workers} at a time ({}) and one more \
         is needed for attempts and dead letters; give the pool at least {} (INBOX_POOL_SIZE, or `max_connections` of your \
         own pool), or lower the concurrency",
        sum.join(" + "),
        workers + 1
    ))
}

/// Checks that no two handlers of a group can get the same message: the second would find the first one's claim.
pub(crate) fn overlaps(selected: &[&HandlerMeta], problems: &mut Vec<String>) {
    for (index, one) in selected.iter().enumerate() {
        for other in &selected[index + 1..] {
            if one.group == other.group && subject::overlap(one.subject, other.subject) {
                problems.push(format!(
                    "in the group `{}`, {} for `{}` and {} for `{}` would get the same messages, of which each is handled \
                     once; give one of them another group",
                    one.group,
                    handler(one),
                    one.subject,
                    handler(other),
                    other.subject
                ));
            }
        }
    }
}
