//! How much of what is fetched ahead a consumer may keep.
//!
//! librdkafka bounds it for each partition: what its queue holds, and what one fetch may bring on top of that. So the bound of the
//! whole consumer is divided among as many partitions as its topics have, though another member of the group may have some of
//! them.

use rdkafka::ClientConfig;

use super::config::Settings;

/// The bound of a consumer in bytes, unless it is told otherwise.
pub(super) const DEFAULT: u64 = 64 << 20;
/// The lowest bound of a consumer in bytes.
pub(super) const LEAST: u64 = 1 << 20;
/// So many partitions have all that is of use.
pub(super) const FEW: u64 = 4;
/// What is of use to one partition in bytes: in its queue, and in one fetch.
const QUEUE: u64 = 8 << 20;
const FETCH: u64 = 1 << 20;
/// Less is of no use: a batch of records comes as a whole.
const MIN: u64 = 32 << 10;
/// What one answer of a broker may have of all partitions, as a part of the whole: the last record of it keeps all of it.
const ANSWER: u64 = 8;
/// librdkafka's largest message in bytes, unless it is told otherwise; an answer must have room for one.
const MESSAGE: u64 = 1_000_000;

/// A number of partitions that leaves room for some more.
pub(super) fn round(partitions: u64) -> u64 {
    partitions.max(FEW).next_power_of_two()
}

/// What a partition may keep in its queue, and what a fetch of it may bring, in bytes, where there are so many.
fn parts(memory: u64, partitions: u64) -> (u64, u64) {
    let half = memory / partitions / 2;
    (half.clamp(MIN, QUEUE), half.clamp(MIN, FETCH))
}

/// Divides the memory of a consumer among so many partitions. What the user has set of it stays.
pub(super) fn share(config: &mut ClientConfig, settings: &Settings, partitions: u64) {
    let (queue, fetch) = parts(settings.memory(), partitions);
    let message = settings.get("message.max.bytes").and_then(|text| text.parse().ok());
    let answer = (settings.memory() / ANSWER).max(message.unwrap_or(MESSAGE).max(MESSAGE) + 512);
    let mut set = |names: &[&str], value: u64| {
        if names.iter().all(|name| settings.get(name).is_none()) {
            config.set(names[0], value.to_string());
        }
    };
    set(&["queued.max.messages.kbytes"], queue / 1024);
    set(&["fetch.message.max.bytes", "max.partition.fetch.bytes"], fetch);
    set(&["fetch.max.bytes"], answer);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g56_all_partitions_together_keep_no_more_than_the_bound() {
        for partitions in [1, 3, 4, 7, 8, 100, 1000] {
            let (queue, fetch) = parts(DEFAULT, round(partitions));
            assert!(
                (queue + fetch) * partitions <= DEFAULT,
                "{partitions}: {queue} and {fetch}"
            );
        }
        assert_eq!(parts(DEFAULT, FEW), (QUEUE, FETCH));
        assert_eq!(parts(DEFAULT, 1 << 20), (MIN, MIN));
    }

    #[test]
    fn g56_what_the_user_sets_stays() {
        let mut settings = Settings::new("one");
        settings.set("queued.max.messages.kbytes", "77");
        settings.set("message.max.bytes", "20000000");
        let mut config = settings.consumer("billing");
        share(&mut config, &settings, 128);
        assert_eq!(config.get("queued.max.messages.kbytes"), Some("77"));
        assert_eq!(config.get("fetch.message.max.bytes"), Some("262144"));
        assert_eq!(config.get("fetch.max.bytes"), Some("20000512"));
    }
}
