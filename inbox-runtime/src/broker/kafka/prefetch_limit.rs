//! The memory limit of a consumer's prefetched records, divided among its partitions.
//!
//! librdkafka limits it per partition: the size of its queue, and of one fetch on top of that. So the limit of the
//! consumer is divided by the number of partitions of its topics, though other members of the group may have some of
//! them.

use rdkafka::ClientConfig;

use super::options::KafkaOptions;

/// With so few partitions each gets the maximum.
pub(super) const FEW_PARTITIONS: u64 = 4;
/// The maximum per partition, in bytes: of its queue, and of one fetch.
const MAX_QUEUE: u64 = 8 << 20;
const MAX_FETCH: u64 = 1 << 20;
/// The minimum of both, in bytes: record batches are fetched as a whole.
const MIN_SHARE: u64 = 32 << 10;
/// The size of one fetch response of a broker, as a fraction of the memory: its last unread record keeps all of it
/// allocated.
const RESPONSE_FRACTION: u64 = 8;
/// librdkafka's default of `message.max.bytes`; a response must have room for one message.
const MAX_MESSAGE: u64 = 1_000_000;

/// The number of partitions to plan for, which leaves room for new ones.
pub(super) fn plan(partitions: u64) -> u64 {
    partitions.max(FEW_PARTITIONS).next_power_of_two()
}

/// The queue size and the fetch size per partition, in bytes.
fn share(memory: u64, partitions: u64) -> (u64, u64) {
    let half = memory / partitions / 2;
    (half.clamp(MIN_SHARE, MAX_QUEUE), half.clamp(MIN_SHARE, MAX_FETCH))
}

/// Divides the memory of a consumer among that many partitions. Properties that the user has set stay.
pub(super) fn apply(config: &mut ClientConfig, options: &KafkaOptions, partitions: u64) {
    let (queue, fetch) = share(options.memory(), partitions);
    let message = options.get("message.max.bytes").and_then(|text| text.parse().ok());
    let message = message.unwrap_or(MAX_MESSAGE).max(MAX_MESSAGE);
    let response = (options.memory() / RESPONSE_FRACTION).max(message + 512);
    let mut set = |names: &[&str], value: u64| {
        if names.iter().all(|name| options.get(name).is_none()) {
            config.set(names[0], value.to_string());
        }
    };
    set(&["queued.max.messages.kbytes"], queue / 1024);
    set(&["fetch.message.max.bytes", "max.partition.fetch.bytes"], fetch);
    set(&["fetch.max.bytes"], response);
}

#[cfg(test)]
mod tests {
    use super::{super::options::DEFAULT_MEMORY, *};

    #[test]
    fn g56_all_partitions_together_stay_within_the_limit() {
        for partitions in [1, 3, 4, 7, 8, 100, 1000] {
            let (queue, fetch) = share(DEFAULT_MEMORY, plan(partitions));
            assert!(
                (queue + fetch) * partitions <= DEFAULT_MEMORY,
                "{partitions}: {queue} and {fetch}"
            );
        }
        assert_eq!(share(DEFAULT_MEMORY, FEW_PARTITIONS), (MAX_QUEUE, MAX_FETCH));
        assert_eq!(share(DEFAULT_MEMORY, 1 << 20), (MIN_SHARE, MIN_SHARE));
    }

    #[test]
    fn g56_properties_of_the_user_stay() {
        let mut options = KafkaOptions::new("one");
        options.set("queued.max.messages.kbytes", "77");
        options.set("message.max.bytes", "20000000");
        let mut config = options.consumer("billing");
        apply(&mut config, &options, 128);
        assert_eq!(config.get("queued.max.messages.kbytes"), Some("77"));
        assert_eq!(config.get("fetch.message.max.bytes"), Some("262144"));
        assert_eq!(config.get("fetch.max.bytes"), Some("20000512"));
    }
}
