//! What can be declared of a handler in numbers and times.

use std::time::Duration;

/// The longest duration, a bound against mistyped units.
const MAX_DURATION: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// The largest number of workers of one handler.
const MAX_CONCURRENCY: u32 = 1024;

/// How long one run may take, in milliseconds.
pub fn timeout(text: &str) -> Result<u64, String> {
    match duration(text)? {
        0 => Err("no handler finishes within a timeout of zero; write how long one may run, as in \"30s\"".to_owned()),
        millis => Ok(millis),
    }
}

/// The smallest and the largest back-off, in milliseconds.
pub fn backoff(text: &str) -> Result<(u64, u64), String> {
    let (first, max) = text.split_once("..").unwrap_or((text, text));
    let max = max.strip_prefix('=').unwrap_or(max);
    if first.trim().is_empty() || max.trim().is_empty() {
        return Err("write both ends of the back-off, as in \"1s..5m\"".to_owned());
    }
    let (first_millis, max_millis) = (duration(first)?, duration(max)?);
    if first_millis == 0 {
        return Err(
            "with a back-off of zero a failing message comes again at once, for ever; write \"1s..5m\"".to_owned(),
        );
    }
    if first_millis > max_millis {
        return Err(format!(
            "the back-off falls; write \"{}..{}\"",
            max.trim(),
            first.trim()
        ));
    }
    Ok((first_millis, max_millis))
}

/// A duration in milliseconds.
pub fn duration(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let duration = humantime::parse_duration(text).map_err(|error| {
        let text = text.escape_debug();
        format!("\"{text}\" is not a duration ({error}); write \"500ms\", \"30s\" or \"5m\"")
    })?;
    if duration > MAX_DURATION {
        return Err(format!(
            "\"{text}\" is longer than a year; write \"500ms\", \"30s\" or \"5m\""
        ));
    }
    if !duration.subsec_nanos().is_multiple_of(1_000_000) {
        return Err(format!(
            "\"{text}\" is finer than a millisecond; write whole milliseconds, as in \"500ms\""
        ));
    }
    u64::try_from(duration.as_millis()).map_err(|_| format!("\"{text}\" is too long"))
}

/// After how many failures a message goes to the dead letters; `None` is what was written and is no such number.
pub fn max_attempts(number: Option<u32>) -> Result<u32, String> {
    number.filter(|limit| *limit > 0).ok_or_else(|| {
        "not a number of attempts; write one from 1, as in `max_attempts = 5`, or \"unlimited\"".to_owned()
    })
}

/// How many messages are handled at a time; `None` is what was written and is no such number.
pub fn concurrency(number: Option<u32>) -> Result<u32, String> {
    number
        .filter(|workers| (1..=MAX_CONCURRENCY).contains(workers))
        .ok_or_else(|| {
            format!("not a number of messages at a time; write 1 to {MAX_CONCURRENCY}, as in `concurrency = 4`")
        })
}
