//! The attempts: which are counted, for whom, and when there are none left.

use super::{Bench, GROUP, commit, fingerprint};
use crate::store::{AttemptKey, AttemptLimit, BeginAttempt, Fingerprint, Session, Store};

const LIMIT: AttemptLimit = AttemptLimit {
    max: Some(3),
    claims: true,
    replay: false,
};

pub(super) fn key(id: &str) -> AttemptKey {
    AttemptKey {
        group: GROUP.to_owned(),
        handler: "shop::billing".to_owned(),
        position: "7".to_owned(),
        message_id: Some(id.to_owned()),
        fingerprint: fingerprint(id),
    }
}

impl<S, E> Bench<S, E>
where
    S: Store,
    E: AsyncFn(&mut S::Conn, &'static str) -> sqlx::Result<u64>,
{
    pub(super) async fn begin_attempt(&self, key: &AttemptKey, limit: AttemptLimit) -> BeginAttempt {
        let begun = self.records.begin_attempt(key, limit).await;
        begun.expect("attempts can be read")
    }

    async fn count(&self, key: &AttemptKey) -> u32 {
        self.records.count_attempt(key).await.expect("an attempt is counted")
    }

    async fn fail(&self, key: &AttemptKey, counted: bool, error: &str) -> u32 {
        let recorded = self.records.record_failure(key, counted, error).await;
        recorded.expect("a failure is recorded")
    }

    async fn refund(&self, key: &AttemptKey, counted: bool) {
        let refunded = self.records.refund_attempt(key, counted).await;
        refunded.expect("an attempt is refunded");
    }

    async fn assert_begins(&self, limit: AttemptLimit, expected: BeginAttempt, rule: &str) {
        let begun = self.begin_attempt(&key("m1"), limit).await;
        assert_eq!(begun, expected, "{rule}");
    }

    pub(super) async fn attempts_are_noted_counted_and_refunded(self) {
        use BeginAttempt::{Begun, Suspect};
        let key = key("m1");
        self.assert_begins(LIMIT, Suspect, "a redelivery without a record is suspect")
            .await;
        assert_eq!(self.count(&key).await, 1, "an attempt is counted before it is made");
        self.assert_begins(LIMIT, Suspect, "an attempt without an end is unfinished")
            .await;
        self.refund(&key, true).await;
        assert_eq!(self.count(&key).await, 1, "an attempt that was refunded doesn't count");
        assert_eq!(self.fail(&key, true, "one").await, 1, "an attempt is not counted twice");

        self.assert_begins(LIMIT, Begun(1), "an attempt that has ended is followed by another")
            .await;
        self.assert_begins(LIMIT, Suspect, "that an attempt begins is noted")
            .await;
        self.refund(&key, false).await;
        self.assert_begins(LIMIT, Begun(1), "a refund undoes the note").await;
        assert_eq!(self.fail(&key, false, "two").await, 2, "a failure is counted");

        let cleared = self.records.clear_attempts(&key).await;
        cleared.expect("attempts are deleted");
        self.assert_begins(LIMIT, Suspect, "attempts that were deleted are gone")
            .await;
        let replay = AttemptLimit { replay: true, ..LIMIT };
        self.assert_begins(replay, Begun(0), "a replay without a record has not begun")
            .await;
    }

    pub(super) async fn attempts_end_at_their_limit(self) {
        for (number, error) in [(1, "one"), (2, "two"), (3, "three")] {
            assert_eq!(
                self.fail(&key("m1"), false, error).await,
                number,
                "a failure is counted"
            );
        }
        let exhausted = BeginAttempt::Exhausted {
            attempts: 3,
            unfinished: false,
            error: Some("three".to_owned()),
        };
        self.assert_begins(LIMIT, exhausted, "the limit is kept, and the last error with it")
            .await;
        let unlimited = AttemptLimit { max: None, ..LIMIT };
        self.assert_begins(
            unlimited,
            BeginAttempt::Begun(3),
            "without a limit there is always another",
        )
        .await;
    }

    pub(super) async fn attempts_are_those_of_one_handler_and_one_message(self) {
        let first = key("m1");
        assert_eq!(self.fail(&first, false, "one").await, 1, "a failure is counted");
        let changes: [fn(&mut AttemptKey); 6] = [
            |key| key.group = "another".to_owned(),
            |key| key.handler = "shop::shipping".to_owned(),
            |key| key.position = "8".to_owned(),
            |key| key.message_id = Some("m2".to_owned()),
            |key| key.message_id = None,
            |key| key.fingerprint = Fingerprint::from_i64(8),
        ];
        for change in changes {
            let mut other = first.clone();
            change(&mut other);
            let begun = self.begin_attempt(&other, LIMIT).await;
            assert_eq!(
                begun,
                BeginAttempt::Suspect,
                "attempts are those of one handler and one message: {other:?}"
            );
            assert_eq!(
                self.count(&other).await,
                1,
                "attempts are those of one handler and one message: {other:?}"
            );
        }
        assert_eq!(
            self.begin_attempt(&first, LIMIT).await,
            BeginAttempt::Begun(1),
            "others change nothing"
        );
    }

    pub(super) async fn a_handled_message_needs_no_attempts(self) {
        let key = key("m1");
        let handled = async |group: &str| {
            self.records
                .handled(group, "m1")
                .await
                .expect("what is handled can be read")
        };
        assert_eq!(handled(GROUP).await, None, "nothing is handled yet");
        self.fail(&key, false, "one").await;
        let mut session = self.begun(Some("m1")).await;
        commit(&mut session).await;
        session.release().await;
        assert_eq!(
            handled(GROUP).await,
            Some(fingerprint("m1")),
            "the group has handled it"
        );
        assert_eq!(handled("another").await, None, "another group has not");

        let without_claim = AttemptLimit { claims: false, ..LIMIT };
        let begun = self.begin_attempt(&key, without_claim).await;
        assert_eq!(
            begun,
            BeginAttempt::Begun(1),
            "a handler without claims doesn't ask for the inbox row"
        );
        let begun = self.begin_attempt(&key, LIMIT).await;
        assert_eq!(
            begun,
            BeginAttempt::Handled(fingerprint("m1")),
            "a message that was handled gets no attempt"
        );
        let begun = self.begin_attempt(&key, without_claim).await;
        assert_eq!(
            begun,
            BeginAttempt::Suspect,
            "the attempts of a message that was handled are deleted"
        );
    }
}
