//! Which handlers are linked into a test, without running any.

use std::sync::Arc;

use inbox_runtime::{HandlerMeta, Inbox};
use parking_lot::Mutex;

/// The handlers of a group, in the order of their subjects.
pub async fn linked(group: &'static str) -> Vec<HandlerMeta> {
    let found = Arc::new(Mutex::new(Vec::new()));
    let sink = found.clone();
    let built = Inbox::builder()
        .select(move |meta| {
            if meta.group == group {
                sink.lock().push(meta.clone());
            }
            false
        })
        .build()
        .await;
    assert!(built.is_err(), "an inbox without handlers started");
    let found = found.lock();
    found.clone()
}
