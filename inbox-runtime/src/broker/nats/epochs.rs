//! When the streams were made to which was published, which a position has: known after the first message to each.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

#[derive(Debug, Default)]
pub(super) struct Epochs(Mutex<HashMap<String, Epoch>>);

/// When a stream was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Created {
    /// In nanoseconds since 1970.
    At(u128),
    /// The server doesn't say it to us.
    Unsaid,
}

#[derive(Clone, Copy, Debug)]
struct Epoch {
    created: Created,
    /// The number of the last message that was stored.
    last: u64,
}

impl Epochs {
    /// When the stream was made; `None` if that has to be asked. A number that isn't larger than one before it is of a stream
    /// that was made anew.
    pub(super) fn of(&self, stream: &str, seq: u64, duplicate: bool) -> Option<Created> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let epoch = all.get_mut(stream)?;
        if duplicate {
            return Some(epoch.created);
        }
        // Messages that are published at the same time are confirmed in any order.
        if seq + OUT_OF_ORDER < epoch.last {
            all.remove(stream);
            return None;
        }
        epoch.last = epoch.last.max(seq);
        Some(epoch.created)
    }

    pub(super) fn note(&self, stream: &str, created: Created, last: u64) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(stream.to_owned(), Epoch { created, last });
    }
}

/// By how much a number may be smaller than one that was confirmed before it.
const OUT_OF_ORDER: u64 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_comes_again_is_of_a_new_stream() {
        let epochs = Epochs::default();
        assert_eq!(epochs.of("S", 1, false), None);
        epochs.note("S", Created::At(5), 20_000);
        assert_eq!(epochs.of("S", 20_001, false), Some(Created::At(5)));
        assert_eq!(epochs.of("S", 19_990, false), Some(Created::At(5)));
        assert_eq!(epochs.of("S", 3, true), Some(Created::At(5)));
        assert_eq!(epochs.of("S", 3, false), None);
        assert_eq!(epochs.of("S", 4, false), None);
    }
}
