//! The permission violations that a server has reported on one connection.

use std::collections::HashMap;

/// How many subjects are remembered for each operation, so that a program that uses many can't fill the memory.
const MAX_SUBJECTS: usize = 1024;

/// Permission violations, by subject. The server reports them asynchronously: whoever uses a subject looks here whether that
/// was denied.
#[derive(Debug, Default)]
pub(super) struct PermissionViolations {
    /// One for each attempt to publish.
    publish: HashMap<String, PermissionViolation>,
    /// One for each `SUB`, never repeated.
    subscribe: HashMap<String, String>,
    last_number: u64,
}

#[derive(Clone, Debug)]
pub(super) struct PermissionViolation {
    /// Grows with each violation on the connection.
    pub(super) number: u64,
    /// The server's text.
    pub(super) text: String,
}

/// Whether an error of the server is a permission violation. Any other one ends the connection.
pub(super) fn is_violation(error: &str) -> bool {
    error.starts_with("Permissions Violation")
}

impl PermissionViolations {
    /// Remembers an error such as `Permissions Violation for Publish to "orders.new"`. Returns whether it was one for a
    /// publish, which whoever publishes reports.
    pub(super) fn record(&mut self, error: &str) -> bool {
        let Some(operation) = error.strip_prefix("Permissions Violation for ") else {
            return false;
        };
        let subject = operation.split('"').nth(1).unwrap_or_default().to_owned();
        if operation.starts_with("Subscription") {
            if self.subscribe.len() < MAX_SUBJECTS {
                self.subscribe.insert(subject, error.to_owned());
            }
            return false;
        }
        if !operation.starts_with("Publish to") || subject.is_empty() {
            return false;
        }
        if self.publish.len() >= MAX_SUBJECTS {
            // They are reported again with the next attempt.
            self.publish.clear();
        }
        self.last_number += 1;
        let violation = PermissionViolation {
            number: self.last_number,
            text: error.to_owned(),
        };
        self.publish.insert(subject, violation);
        true
    }

    /// The last violation for publishing to `subject`.
    pub(super) fn publish(&self, subject: &str) -> Option<&PermissionViolation> {
        self.publish.get(subject)
    }

    /// The server's text why `subject` can't be subscribed to.
    pub(super) fn subscribe(&self, subject: &str) -> Option<&str> {
        self.subscribe.get(subject).map(String::as_str)
    }

    /// The server's text why some subject can't be subscribed to.
    pub(super) fn any_subscribe(&self) -> Option<&str> {
        self.subscribe.values().next().map(String::as_str)
    }

    /// Publishing to `subject` has succeeded.
    pub(super) fn forget_publish(&mut self, subject: &str) {
        self.publish.remove(subject);
    }

    pub(super) fn clear(&mut self) {
        self.publish.clear();
        self.subscribe.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn violations_are_kept_by_operation_and_subject() {
        let mut violations = PermissionViolations::default();
        assert!(violations.record(r#"Permissions Violation for Publish to "a.b""#));
        assert!(!violations.record(r#"Permissions Violation for Subscription to "_INBOX.x.*""#));
        assert!(!violations.record("Authorization Violation"));
        assert_eq!(violations.publish("a.b").map(|violation| violation.number), Some(1));
        assert!(violations.publish("_INBOX.x.*").is_none() && violations.subscribe("a.b").is_none());
        assert!(
            violations
                .subscribe("_INBOX.x.*")
                .is_some_and(|text| text.contains("Subscription"))
        );
        assert!(violations.record(r#"Permissions Violation for Publish to "a.b""#));
        assert_eq!(violations.publish("a.b").map(|violation| violation.number), Some(2));
        violations.forget_publish("a.b");
        assert!(violations.publish("a.b").is_none() && violations.any_subscribe().is_some());
    }

    #[test]
    fn the_number_of_subjects_is_bounded_and_numbers_keep_growing() {
        let mut violations = PermissionViolations::default();
        for subject in 0..=MAX_SUBJECTS {
            assert!(violations.record(&format!(r#"Permissions Violation for Publish to "a.{subject}""#)));
        }
        assert_eq!(violations.publish.len(), 1);
        let last = violations.publish(&format!("a.{MAX_SUBJECTS}")).expect("the last one");
        assert_eq!(last.number, MAX_SUBJECTS as u64 + 1);
    }
}
