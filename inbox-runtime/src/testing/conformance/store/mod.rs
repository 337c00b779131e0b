//! The checks that every store passes, those of this crate among them.

use std::{
    slice,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::store::{
    Claim, Claimed, Fingerprint, MigrateMode, NextTx, Records, Session, Store, StoreError, StoreSettings,
};

mod attempts;
mod broken;
mod claims;
mod database;
mod dead_letters;
mod transactions;

/// How long a lock that will be released is waited for.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a claim must not be answered while another transaction holds it.
const QUIET: Duration = Duration::from_millis(300);

const GROUP: &str = "conformance";
const EFFECT: &str = "INSERT INTO conformance_effects (id) VALUES ('e1')";

/// Puts a store to every check, one after the other. `url` makes an empty database, without the inbox's tables, and returns its
/// URL; it is called once for each check. `execute` runs one statement on a handler's connection and returns how many rows it
/// has changed. The statements are of the SQL that databases have in common.
///
/// It takes some seconds, since claims have to wait for each other.
///
/// # Panics
///
/// With the rule that the store breaks.
///
/// # Cancel safety
///
/// Dropped, it leaves tables and rows in the databases that were made.
///
/// # Examples
///
/// ```
/// # #[cfg(feature = "sqlite")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use inbox_runtime::{
///     sqlx::{self, SqliteConnection},
///     store::StoreOf,
///     testing::conformance,
/// };
///
/// let folder = tempfile::tempdir().unwrap();
/// let url = async || format!("sqlite://{}/{}.db?mode=rwc", folder.path().display(), uuid::Uuid::new_v4());
/// let execute = async |conn: &mut SqliteConnection, sql: &'static str| {
///     Ok(sqlx::raw_sql(sql).execute(conn).await?.rows_affected())
/// };
/// conformance::store::<StoreOf<SqliteConnection>>(url, execute).await;
/// # }
/// # #[cfg(not(feature = "sqlite"))]
/// # fn main() {}
/// ```
pub async fn store<S: Store>(
    url: impl AsyncFn() -> String,
    execute: impl AsyncFn(&mut S::Conn, &'static str) -> sqlx::Result<u64>,
) {
    database::tables_are_made_once_and_checked::<S>(&url().await).await;
    database::two_programs_may_make_the_tables_at_once::<S>(&url().await).await;
    let bench = async || Bench::<S, _>::new(&url().await, &execute).await;
    bench().await.a_database_that_works_can_be_probed().await;
    bench().await.a_group_is_known_by_whatever_it_has_left().await;

    bench().await.a_commit_keeps_the_claim_and_the_effects().await;
    bench().await.a_rollback_keeps_nothing().await;
    bench().await.a_dropped_transaction_is_rolled_back().await;
    bench().await.a_session_runs_one_transaction_after_another().await;
    bench().await.a_transaction_that_was_begun_in_advance_is_one().await;
    bench().await.a_transaction_that_the_handler_ended_is_broken().await;
    bench().await.a_statement_that_failed_is_told_from_an_outage().await;
    bench()
        .await
        .a_failed_statement_that_was_ignored_commits_all_or_nothing()
        .await;

    bench().await.a_duplicate_has_the_fingerprint_of_the_first().await;
    bench().await.ids_are_compared_byte_by_byte_within_a_group().await;
    bench().await.a_claim_waits_for_the_other_transaction().await;
    bench().await.a_claim_by_hand_is_one().await;

    bench().await.attempts_are_noted_counted_and_refunded().await;
    bench().await.attempts_end_at_their_limit().await;
    bench().await.attempts_are_those_of_one_handler_and_one_message().await;
    bench().await.a_handled_message_needs_no_attempts().await;

    bench().await.a_dead_letter_is_written_once_per_message().await;
    bench().await.dead_letters_are_listed_oldest_first().await;
    bench().await.a_dead_letter_has_the_whole_message().await;
    bench().await.whatever_a_message_contains_can_be_recorded().await;
    bench().await.a_replay_is_completed_or_written_again().await;
    bench().await.a_replay_belongs_to_its_last_lease().await;
    bench().await.a_replay_that_nobody_leases_is_stranded().await;
}

/// The store of a database, as one program has it.
fn connect<S: Store>(url: &str) -> S {
    let settings = StoreSettings {
        lock_wait: Duration::from_secs(5),
        ..StoreSettings::default()
    };
    S::from_url(url, settings).expect("the URL of a database can be read")
}

/// A fresh database with the inbox's tables.
struct Bench<S, E> {
    store: S,
    records: Arc<dyn Records>,
    execute: E,
}

impl<S, E> Bench<S, E>
where
    S: Store,
    E: AsyncFn(&mut S::Conn, &'static str) -> sqlx::Result<u64>,
{
    async fn new(url: &str, execute: E) -> Self {
        let store: S = connect(url);
        let records = store.records();
        records
            .migrate(MigrateMode::Auto)
            .await
            .expect("the tables can be made");
        let bench = Self {
            store,
            records,
            execute,
        };
        let mut session = bench.begun(None).await;
        bench
            .run(
                &mut session,
                "CREATE TABLE conformance_effects (id VARCHAR(10) PRIMARY KEY)",
            )
            .await;
        commit(&mut session).await;
        session.release().await;
        bench
    }

    async fn session(&self) -> S::Session {
        self.store.session().await.expect("a session can be opened")
    }

    /// A session with an open transaction, in which that message is claimed.
    async fn begun(&self, id: Option<&str>) -> S::Session {
        let mut session = self.session().await;
        let claimed = begin(&mut session, id).await;
        assert_eq!(
            claimed,
            Claimed::Fresh,
            "a message that nobody has handled is fresh: {id:?}"
        );
        session
    }

    /// The same as soon as no other transaction holds the claim, and the answer.
    async fn begun_patiently(&self, id: &str) -> (S::Session, Claimed) {
        let start = Instant::now();
        loop {
            let mut session = self.session().await;
            match claim_one(&mut session, &claim(id)).await {
                Ok(claimed) => return (session, claimed),
                Err(StoreError::Locked(_) | StoreError::Unavailable(_) | StoreError::Retry(_))
                    if start.elapsed() < PATIENCE => {}
                Err(error) => panic!("a claim that nobody holds is answered: {error:?}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Runs a statement of the handler's.
    async fn try_run(&self, session: &mut S::Session, sql: &'static str) -> sqlx::Result<u64> {
        (self.execute)(session.conn(), sql).await
    }

    async fn run(&self, session: &mut S::Session, sql: &'static str) -> u64 {
        self.try_run(session, sql).await.expect(sql)
    }

    /// Whether the message is recorded as handled.
    async fn is_handled(&self, id: &str) -> bool {
        let handled = self.records.handled(GROUP, id).await;
        handled.expect("what is handled can be read").is_some()
    }

    /// How many effects are committed.
    async fn effects(&self) -> u64 {
        let mut session = self.begun(None).await;
        let effects = self.run(&mut session, "DELETE FROM conformance_effects").await;
        abandon(&mut session).await;
        session.release().await;
        effects
    }

    /// Asserts that a message's transaction is committed as a whole, or that nothing of it is.
    async fn assert_committed(&self, id: &str, committed: bool, rule: &str) {
        assert_eq!(self.is_handled(id).await, committed, "{rule}: the inbox row of {id}");
        assert_eq!(
            self.effects().await,
            u64::from(committed),
            "{rule}: the effects of {id}"
        );
    }
}

/// A fingerprint that is that id's.
fn fingerprint(id: &str) -> Fingerprint {
    Fingerprint::of("conformance.created", Some(id.as_bytes()))
}

fn claim(id: &str) -> Claim<'_> {
    Claim {
        group: GROUP,
        message_id: id,
        fingerprint: fingerprint(id),
    }
}

async fn begin<S: Session>(session: &mut S, id: Option<&str>) -> Claimed {
    match id {
        Some(id) => claim_one(session, &claim(id))
            .await
            .expect("a transaction can be begun"),
        None => {
            let answers = session.begin(&[]).await.expect("a transaction can be begun");
            assert_eq!(answers, [], "no claim has no answer");
            Claimed::Fresh
        }
    }
}

/// Begins a transaction with one claim.
async fn claim_one<S: Session>(session: &mut S, claim: &Claim<'_>) -> Result<Claimed, StoreError> {
    let answers = session.begin(slice::from_ref(claim)).await?;
    let [claimed] = answers[..] else {
        panic!("one claim has one answer: {answers:?}")
    };
    Ok(claimed)
}

async fn commit<S: Session>(session: &mut S) {
    finish(session, NextTx::None).await;
}

async fn finish<S: Session>(session: &mut S, next: NextTx<'_>) {
    session
        .finish(&[], next)
        .await
        .expect("a transaction of ours can be committed");
}

async fn abandon<S: Session>(session: &mut S) {
    session
        .abandon()
        .await
        .expect("a transaction of ours can be rolled back");
}
