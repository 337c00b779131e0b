//! The keys of the attribute, and the nearest of several words to one that was misspelt.

/// A key, and how it is written.
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) example: &'static str,
    /// Words that others use for it.
    aliases: &'static [&'static str],
}

const fn key(name: &'static str, example: &'static str, aliases: &'static [&'static str]) -> Key {
    Key { name, example, aliases }
}

pub(crate) const GROUP: Key = key(
    "group",
    "group = \"billing\"",
    &["consumer_group", "consumer", "durable", "queue"],
);
pub(crate) const SUBJECT: Key = key("subject", "subject = \"order.created\"", &["topic", "event", "channel"]);
pub(crate) const ACK: Key = key("ack", "ack = \"exactly_once\"", &["ack_mode", "ack_policy", "delivery"]);
pub(crate) const COMMIT: Key = key("commit", "commit = \"on_success\"", &[]);
pub(crate) const ID: Key = key("id", "id = \"header:order-id\"", &["message_id", "key"]);
pub(crate) const START: Key = key(
    "start",
    "start = \"new\"",
    &["offset", "deliver_policy", "start_position"],
);
pub(crate) const TIMEOUT: Key = key("timeout", "timeout = \"30s\"", &["deadline"]);
pub(crate) const MAX_ATTEMPTS: Key = key(
    "max_attempts",
    "max_attempts = 5",
    &["retries", "max_retries", "attempts", "max_deliver"],
);
pub(crate) const BACKOFF: Key = key("backoff", "backoff = \"1s..5m\"", &["retry_delay", "delay"]);
pub(crate) const CONCURRENCY: Key = key("concurrency", "concurrency = 4", &["workers", "parallelism"]);
pub(crate) const STREAM: Key = key("stream", "stream = \"ORDERS\"", &["stream_name"]);
pub(crate) const ORDERED: Key = key("ordered", "ordered = true", &["in_order", "fifo", "ordering"]);
pub(crate) const CRATE: Key = key("crate", "crate = my_facade::inbox_runtime", &["path", "krate"]);

/// Every key.
pub(crate) const KEYS: [Key; 13] = [
    GROUP,
    SUBJECT,
    ACK,
    COMMIT,
    ID,
    START,
    TIMEOUT,
    MAX_ATTEMPTS,
    BACKOFF,
    CONCURRENCY,
    STREAM,
    ORDERED,
    CRATE,
];

/// The key that was probably meant.
pub(crate) fn nearest_key(word: &str) -> Option<&'static str> {
    let alias = KEYS.iter().find(|key| key.aliases.contains(&word));
    alias
        .map(|key| key.name)
        .or_else(|| nearest(word, KEYS.iter().map(|key| key.name)))
}

/// The word that was probably meant: the nearest one, unless it differs in a third of its letters or more.
pub(crate) fn nearest<'w>(word: &str, words: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    let word = word.to_ascii_lowercase().replace('-', "_");
    words
        .map(|known| (distance(&word, known), known))
        .filter(|&(distance, known)| distance <= known.len().div_ceil(3))
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, known)| known)
}

/// Several words as a list in a sentence.
pub(crate) fn list<'w>(words: impl Iterator<Item = &'w str>) -> String {
    words.map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

/// The edit distance in which a transposition of neighbours is one step.
fn distance(from: &str, to: &str) -> usize {
    let from: Vec<char> = from.chars().collect();
    let to: Vec<char> = to.chars().collect();
    let mut rows = vec![(0..=to.len()).collect::<Vec<usize>>()];
    for i in 1..=from.len() {
        let mut row = vec![i];
        for j in 1..=to.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(from[i - 1] != to[j - 1]);
            let mut best = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[from.len()][to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f89_the_nearest_word_is_found_and_a_strange_one_is_not() {
        assert_eq!(nearest_key("gruop"), Some("group"));
        assert_eq!(nearest_key("Subject"), Some("subject"));
        assert_eq!(nearest_key("topic"), Some("subject"));
        assert_eq!(nearest_key("max-attempt"), Some("max_attempts"));
        assert_eq!(nearest_key("colour"), None);
        assert_eq!(nearest_key("x"), None);
        assert_eq!(distance("ca", "ac"), 1);
        assert_eq!(distance("", "abc"), 3);
    }
}
