//! The dead letters: what is kept, and whose a replay is.

use std::time::{Duration, SystemTime};

use super::{Bench, GROUP, attempts::key};
use crate::{
    delivery::Headers,
    store::{
        AttemptLimit, BeginAttempt, DeadLetter, DeadLetterReason, DeadLetterStatus, NewDeadLetter, ReplayToken, Store,
    },
};

const LEASE: Duration = Duration::from_secs(60);
const LIMIT: AttemptLimit = AttemptLimit {
    max: Some(3),
    claims: true,
    replay: false,
};

pub(super) fn letter(id: &str, error: &str, replay: Option<ReplayToken>) -> NewDeadLetter {
    NewDeadLetter {
        key: key(id),
        replay,
        subject: "order.created".to_owned(),
        headers: Headers::new(),
        payload: Some("{}".into()),
        message_key: None,
        published_at: None,
        reason: DeadLetterReason::Permanent,
        error: error.to_owned(),
        attempts: 1,
    }
}

impl<S, E> Bench<S, E>
where
    S: Store,
    E: AsyncFn(&mut S::Conn, &'static str) -> sqlx::Result<u64>,
{
    async fn write(&self, letter: &NewDeadLetter) -> bool {
        let written = self.records.write_dead_letter(letter).await;
        written.expect("a dead letter can be written")
    }

    async fn letters(&self, group: Option<&str>, after: i64) -> Vec<DeadLetter> {
        let letters = self.records.dead_letters(group, after, 10).await;
        letters.expect("dead letters can be read")
    }

    pub(super) async fn only_letter(&self) -> DeadLetter {
        let mut letters = self.letters(None, 0).await;
        assert_eq!(letters.len(), 1, "there is one dead letter");
        letters.remove(0)
    }

    async fn request(&self, id: i64) -> Option<(String, String)> {
        let requested = self.records.request_replay(id).await;
        requested.expect("a replay can be requested")
    }

    /// The lease of the only letter that is due.
    async fn lease(&self) -> Option<ReplayToken> {
        let leased = self.records.lease_replays(GROUP, "shop::billing", 10, LEASE).await;
        let leased = leased.expect("replays can be leased");
        assert!(leased.len() <= 1, "there is one dead letter: {leased:?}");
        leased.first().map(|(_, token)| *token)
    }

    async fn postpone(&self, token: ReplayToken, taken: bool, delay: Duration) -> bool {
        let postponed = self.records.postpone_replay(token, taken, delay).await;
        postponed.expect("a replay can be postponed")
    }

    async fn complete(&self, token: ReplayToken) -> bool {
        let completed = self.records.complete_replay(token).await;
        completed.expect("a replay can be completed")
    }

    pub(super) async fn a_dead_letter_is_written_once_per_message(self) {
        let key = key("m1");
        self.records.count_attempt(&key).await.expect("an attempt is counted");
        for error in ["first", "second"] {
            assert!(
                self.write(&letter("m1", error, None)).await,
                "a dead letter is written over"
            );
        }
        let begun = self.begin_attempt(&key, LIMIT).await;
        assert_eq!(
            begun,
            BeginAttempt::DeadLettered,
            "a message that is dead-lettered gets no attempt"
        );
        let kept = self.only_letter().await;
        assert_eq!(kept.error, "second", "a dead letter has the last error");
        for existed in [true, false] {
            let deleted = self.records.delete_dead_letter(kept.id).await;
            assert_eq!(
                deleted.expect("a dead letter is deleted"),
                existed,
                "it is deleted once"
            );
        }
        let replay = AttemptLimit { replay: true, ..LIMIT };
        let begun = self.begin_attempt(&key, replay).await;
        assert_eq!(
            begun,
            BeginAttempt::Begun(0),
            "a dead letter's attempts are deleted with it"
        );
    }

    pub(super) async fn dead_letters_are_listed_oldest_first(self) {
        for id in ["m1", "m2", "m3"] {
            assert!(
                self.write(&letter(id, id, None)).await,
                "each message has a dead letter of its own"
            );
        }
        let all = self.letters(Some(GROUP), 0).await;
        let errors: Vec<_> = all.iter().map(|letter| letter.error.as_str()).collect();
        assert_eq!(errors, ["m1", "m2", "m3"], "dead letters are listed oldest first");
        assert_eq!(
            self.letters(None, all[0].id).await,
            all[1..],
            "a page begins after a number"
        );
        assert_eq!(self.letters(Some("another"), 0).await, [], "each group has its own");
        let first = self.records.dead_letters(None, 0, 1).await;
        assert_eq!(first.expect("dead letters can be read"), all[..1], "a page has a limit");
        let one = self.records.dead_letter(all[0].id).await;
        let one = one.expect("a dead letter can be read");
        assert_eq!(one.as_ref(), Some(&all[0]), "one dead letter is as the list has it");
    }

    pub(super) async fn a_dead_letter_has_the_whole_message(self) {
        let mut headers = Headers::new();
        headers.append("trace", "one");
        headers.append("trace", &b"\xff\x00"[..]);
        headers.append_null("empty");
        let published_at = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123);
        for (number, reason) in DeadLetterReason::ALL.into_iter().enumerate() {
            let new = NewDeadLetter {
                headers: headers.clone(),
                payload: (number > 0).then(|| vec![0, 0xff, u8::try_from(number).unwrap_or(0)].into()),
                message_key: Some("customer-7".into()),
                published_at: Some(published_at),
                reason,
                attempts: 3,
                ..letter("m1", "no network", None)
            };
            assert!(self.write(&new).await, "a dead letter is written over");
            let kept = self.only_letter().await;
            let expected = DeadLetter::new(kept.id, new, kept.first_failed_at, kept.dead_at);
            assert_eq!(
                kept, expected,
                "a dead letter has the whole message, and what became of it"
            );
        }
    }

    pub(super) async fn whatever_a_message_contains_can_be_recorded(self) {
        let long = "0€\0".repeat(20_000);
        let mut new = letter("m1", &long, None);
        new.key.position.clone_from(&long);
        new.key.handler.clone_from(&long);
        new.key.message_id = Some(long.clone());
        new.subject.clone_from(&long);
        new.published_at = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 40));
        let recorded = self.records.record_failure(&new.key, false, &long).await;
        assert_eq!(
            recorded.expect("any failure is recorded"),
            1,
            "whatever a message contains can be recorded"
        );
        assert!(
            self.write(&new).await,
            "whatever a message contains can be dead-lettered"
        );
        let begun = self.begin_attempt(&new.key, LIMIT).await;
        assert_eq!(begun, BeginAttempt::DeadLettered, "a key that was cut is found again");
        let handled = self.records.handled(GROUP, &long).await;
        assert_eq!(
            handled.expect("an id that can't be stored is asked for"),
            None,
            "it was not handled"
        );
        // Another id with the same beginning is another message.
        new.key.message_id = Some(format!("{long}0"));
        assert!(
            self.write(&new).await,
            "whatever a message contains can be dead-lettered"
        );
        assert_eq!(
            self.letters(None, 0).await.len(),
            2,
            "keys that were cut are told apart"
        );
    }

    /// A dead letter whose replay is requested.
    async fn requested(&self) -> i64 {
        self.write(&letter("m1", "first", None)).await;
        assert_eq!(self.lease().await, None, "what nobody has requested is not replayed");
        let id = self.only_letter().await.id;
        assert_eq!(self.request(id + 1).await, None, "there is no such dead letter");
        let requested = Some((GROUP.to_owned(), "shop::billing".to_owned()));
        assert_eq!(self.request(id).await, requested, "a request names the handler");
        let status = self.only_letter().await.status;
        assert_eq!(status, DeadLetterStatus::Replaying, "a request is shown");
        id
    }

    pub(super) async fn a_replay_is_completed_or_written_again(self) {
        let id = self.requested().await;
        let lease = self.lease().await.expect("what is requested is due");
        let failed = letter("m1", "again", Some(lease));
        assert!(self.write(&failed).await, "a replay may fail");
        assert!(!self.complete(lease).await, "a replay that has failed is not completed");
        let kept = self.only_letter().await;
        let found = (kept.id, kept.error.as_str(), kept.status);
        assert_eq!(
            found,
            (id, "again", DeadLetterStatus::Dead),
            "a replay that has failed waits again"
        );
        self.request(id).await;
        let lease = self.lease().await.expect("what has failed can be requested");
        assert!(self.complete(lease).await, "a replay that was handled is completed");
        let gone = self.records.dead_letter(id).await.expect("a dead letter can be read");
        assert_eq!(gone, None, "a replay that was completed leaves no dead letter");
    }

    pub(super) async fn a_replay_belongs_to_its_last_lease(self) {
        let id = self.requested().await;
        let first = self.lease().await.expect("what is requested is due");
        assert_eq!(self.lease().await, None, "a lease is one worker's");
        self.request(id).await;
        assert_eq!(self.lease().await, None, "a request doesn't end a lease");
        assert!(self.postpone(first, true, LEASE).await, "a lease can be renewed");
        assert!(
            self.postpone(first, false, Duration::ZERO).await,
            "a lease can be released"
        );
        let second = self.lease().await.expect("what was released is due");

        assert!(
            !self.postpone(first, true, LEASE).await,
            "a lease that has passed on can't be renewed"
        );
        assert!(
            !self.complete(first).await,
            "a lease that has passed on completes nothing"
        );
        let late = letter("m1", "too late", Some(first));
        assert!(!self.write(&late).await, "a lease that has passed on writes nothing");
        assert_eq!(
            self.only_letter().await.error,
            "first",
            "a lease that has passed on writes nothing"
        );
        assert!(self.complete(second).await, "the last lease is the one that counts");
    }

    pub(super) async fn a_replay_that_nobody_leases_is_stranded(self) {
        self.write(&letter("m1", "first", None)).await;
        let stranded = async |wait| {
            self.records
                .stranded_replays(wait)
                .await
                .expect("stranded replays can be read")
        };
        assert_eq!(
            stranded(Duration::ZERO).await,
            [],
            "what nobody has requested waits for nobody"
        );
        let id = self.only_letter().await.id;
        self.request(id).await;
        // The clock of a database may be no finer than some milliseconds.
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(
            stranded(Duration::from_secs(3600)).await,
            [],
            "it has not waited for that long"
        );
        let found = stranded(Duration::ZERO).await;
        assert_eq!(found.len(), 1, "one handler's replays wait: {found:?}");
        assert_eq!(
            (found[0].group.as_str(), found[0].letters),
            (GROUP, 1),
            "whose they are, and how many"
        );
        self.lease().await.expect("what is requested is due");
        assert_eq!(stranded(Duration::ZERO).await, [], "what is leased waits for nobody");
    }
}
