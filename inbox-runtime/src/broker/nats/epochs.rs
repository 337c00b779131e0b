//! The creation times of the streams that were published to: a part of each position, requested once for each stream.

use std::collections::HashMap;

use parking_lot::Mutex;

/// A cache of creation times, by stream.
#[derive(Debug, Default)]
pub(super) struct StreamEpochs(Mutex<HashMap<String, Epoch>>);

/// When a stream was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Created {
    /// In nanoseconds since 1970.
    At(u128),
    /// The permission to read it is missing.
    Unknown,
}

#[derive(Clone, Copy, Debug)]
struct Epoch {
    created: Created,
    /// The sequence number of the last message that was stored.
    last: u64,
}

impl StreamEpochs {
    /// When the stream was created; `None` if it has to be requested. A sequence number that is not larger than an
    /// earlier one belongs to a stream that was recreated.
    pub(super) fn get(&self, stream: &str, seq: u64, duplicate: bool) -> Option<Created> {
        let mut all = self.0.lock();
        let epoch = all.get_mut(stream)?;
        if duplicate {
            return Some(epoch.created);
        }
        // Concurrent publishes are confirmed in any order.
        if seq + OUT_OF_ORDER < epoch.last {
            all.remove(stream);
            return None;
        }
        epoch.last = epoch.last.max(seq);
        Some(epoch.created)
    }

    pub(super) fn insert(&self, stream: &str, created: Created, last: u64) {
        let mut all = self.0.lock();
        all.insert(stream.to_owned(), Epoch { created, last });
    }
}

/// By how much a sequence number may be smaller than one confirmed before it.
const OUT_OF_ORDER: u64 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_sequence_number_is_of_a_recreated_stream() {
        let epochs = StreamEpochs::default();
        assert_eq!(epochs.get("S", 1, false), None);
        epochs.insert("S", Created::At(5), 20_000);
        assert_eq!(epochs.get("S", 20_001, false), Some(Created::At(5)));
        assert_eq!(epochs.get("S", 19_990, false), Some(Created::At(5)));
        assert_eq!(epochs.get("S", 3, true), Some(Created::At(5)));
        assert_eq!(epochs.get("S", 3, false), None);
        assert_eq!(epochs.get("S", 4, false), None);
    }
}
