//! The stores of the runtime pass the checks that a store of your own is put to.

use inbox_runtime::{
    store::{Store, StoreOf},
    testing::conformance,
};
use inbox_tests::{SqliteFile, TestConnection, TestDatabase};
use tokio::sync::Mutex;

/// Puts the store `S` to the checks, on databases of `D`.
pub(crate) async fn conforms<D: TestDatabase, S: Store<Conn = D::Conn>>() {
    // They last as long as their clients.
    let made = Mutex::new(Vec::new());
    let url = async || {
        let database = D::fresh().await;
        let url = database.url();
        made.lock().await.push(database);
        url
    };
    let execute = async |conn: &mut D::Conn, sql: &'static str| conn.changed(sql).await;
    conformance::store::<S>(url, execute).await;
}

#[tokio::test]
async fn sqlite() {
    conforms::<SqliteFile, StoreOf<<SqliteFile as TestDatabase>::Conn>>().await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn postgres() {
    use inbox_tests::PostgresDatabase;
    conforms::<PostgresDatabase, StoreOf<<PostgresDatabase as TestDatabase>::Conn>>().await;
}
