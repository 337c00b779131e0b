//! The database as a whole: its tables, probes, and what it knows of a group.

use futures_util::future::join;

use super::{Bench, GROUP, attempts, begin, commit, connect, dead_letters};
use crate::store::{Claimed, MigrateError, MigrateMode, Session, Store, StoreError};

pub(super) async fn tables_are_made_once_and_checked<S: Store>(url: &str) {
    let records = connect::<S>(url).records();
    records
        .check_connection()
        .await
        .expect("the database can be connected to");
    let described = records.describe().await.expect("the database can be described");
    assert!(!described.is_empty(), "the start report names the database");
    let checked = records.migrate(MigrateMode::Check).await;
    assert!(
        matches!(checked, Err(MigrateError::Shape(_))),
        "tables that are missing are a difference: {checked:?}"
    );
    let off = records.migrate(MigrateMode::Off).await;
    off.expect("`off` looks at nothing");
    let probed = records.check_writable().await;
    assert!(
        matches!(probed, Err(StoreError::TablesMissing(_))),
        "tables that are missing can't be written to: {probed:?}"
    );
    for mode in [
        MigrateMode::Auto,
        MigrateMode::Auto,
        MigrateMode::Check,
        MigrateMode::Off,
    ] {
        let migrated = records.migrate(mode).await;
        migrated.expect("tables are made once, and are then as they must be");
    }
    records.check_writable().await.expect("the tables can be written to");
}

pub(super) async fn two_programs_may_make_the_tables_at_once<S: Store>(url: &str) {
    let (one, other) = (connect::<S>(url).records(), connect::<S>(url).records());
    let (one, other) = join(one.migrate(MigrateMode::Auto), other.migrate(MigrateMode::Auto)).await;
    one.and(other).expect("two programs may make the tables at once");
}

impl<S, E> Bench<S, E>
where
    S: Store,
    E: AsyncFn(&mut S::Conn, &'static str) -> sqlx::Result<u64>,
{
    pub(super) async fn a_database_that_works_can_be_probed(self) {
        self.store.probe().await.expect("a database that works can be probed");
        self.records.probe().await.expect("a database that works can be probed");
        let mut session = self.session().await;
        session.probe().await.expect("a session that works can be probed");
        let claimed = begin(&mut session, Some("m1")).await;
        assert_eq!(claimed, Claimed::Fresh, "a probe claims nothing");
        commit(&mut session).await;
        session.release().await;
        assert!(self.is_handled("m1").await, "a session that was probed can be used");
    }

    pub(super) async fn a_group_is_known_by_whatever_it_has_left(self) {
        let has = async |group: &str| self.records.has_group(group).await.expect("groups can be read");
        assert!(!has(GROUP).await, "a group that has left nothing is not known");
        let key = attempts::key("m1");
        self.records.count_attempt(&key).await.expect("an attempt is counted");
        assert!(has(GROUP).await, "a group is known by an attempt");
        self.records.clear_attempts(&key).await.expect("attempts are deleted");
        assert!(!has(GROUP).await, "attempts that were deleted are gone");
        let letter = dead_letters::letter("m1", "first", None);
        self.records
            .write_dead_letter(&letter)
            .await
            .expect("a dead letter is written");
        assert!(has(GROUP).await, "a group is known by a dead letter");
        let id = self.only_letter().await.id;
        self.records
            .delete_dead_letter(id)
            .await
            .expect("a dead letter is deleted");
        assert!(!has(GROUP).await, "a dead letter that was deleted is gone");
        let mut session = self.begun(Some("m1")).await;
        commit(&mut session).await;
        session.release().await;
        assert!(has(GROUP).await, "a group is known by a message that it has handled");
        assert!(!has("another").await, "a group is known by what it has left itself");
    }
}
