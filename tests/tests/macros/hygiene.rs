//! Handlers in surroundings that break macros whose output resolves names there.

use inbox_runtime::sqlx::{Connection, SqliteConnection};
use inbox_tests::linked;

async fn connection() -> SqliteConnection {
    SqliteConnection::connect("sqlite::memory:")
        .await
        .expect("SQLite opens in memory")
}

mod redefined {
    //! Every name of the prelude that an expansion might use means something else here.
    #![allow(dead_code, reason = "they only have to be in scope")]

    use inbox_runtime::{Meta, State, inbox_handler, sqlx::SqliteConnection};

    pub(super) type Result<T> = ::std::result::Result<T, inbox_runtime::HandlerError>;

    pub(super) struct Ok;
    pub(super) struct Err;
    pub(super) struct Some;
    pub(super) struct None;
    pub(super) struct Option;
    pub(super) struct Box;
    pub(super) struct Vec;
    pub(super) struct String;
    pub(super) struct Invocation;
    pub(super) struct Registration;
    pub(super) trait Send {}
    pub(super) trait Sync {}
    pub(super) trait Future {}
    pub(super) trait FnOnce {}
    pub(super) trait Into {}
    pub(super) trait From {}

    #[allow(unused_macros, reason = "nothing may use it")]
    macro_rules! refuse {
        ($($tokens:tt)*) => {
            ::std::compile_error!("the expansion uses a macro of the user's");
        };
    }
    #[allow(unused_imports, reason = "nothing may use them")]
    use {refuse as concat, refuse as module_path, refuse as submit};

    #[inbox_handler(
        group = "f85",
        subject = "redefined",
        max_attempts = 3,
        id = "position",
        start = "new"
    )]
    pub(super) async fn on_order(_tx: &mut SqliteConnection, _meta: Meta, _state: State<u8>) -> Result<()> {
        ::std::result::Result::Ok(())
    }

    #[inbox_handler(group = "f85", subject = "anyhow")]
    pub(super) async fn with_anyhow(_tx: &mut SqliteConnection) -> anyhow::Result<()> {
        ::std::result::Result::Ok(())
    }

    #[inbox_handler(
        group = "f85",
        subject = "unlimited",
        ack = "at_least_once",
        max_attempts = "unlimited"
    )]
    pub(super) async fn without_transaction() -> Result<()> {
        ::std::result::Result::Ok(())
    }
}

#[tokio::test]
async fn f85_the_user_may_redefine_result_and_the_rest_of_the_prelude() {
    let mut connection = connection().await;
    let meta = inbox_runtime::Meta::builder().build();
    assert!(
        redefined::on_order(&mut connection, meta, inbox_runtime::State(1))
            .await
            .is_ok()
    );
    assert!(redefined::with_anyhow(&mut connection).await.is_ok());
    assert!(redefined::without_transaction().await.is_ok());
    assert_eq!(linked("f85").await.len(), 4);
}

mod own_result {
    //! A return type that only is a `Result` by another name.

    use inbox_runtime::{Handled, HandlerError, inbox_handler};

    type Answer = Result<Handled, HandlerError>;

    #[inbox_handler(group = "f85", subject = "alias", ack = "at_least_once")]
    pub(super) async fn on_order() -> Answer {
        Ok(Handled::Skipped)
    }
}

#[tokio::test]
async fn f85_the_return_type_may_be_an_alias() {
    assert!(matches!(
        own_result::on_order().await,
        Ok(inbox_runtime::Handled::Skipped)
    ));
}

mod renamed {
    //! The runtime under other names.

    extern crate inbox_runtime as ib;

    pub(super) mod facade {
        pub(crate) use inbox_runtime as inbox;
    }

    pub(super) mod flat {
        pub(crate) use inbox_runtime::*;
    }

    #[ib::inbox_handler(group = "f87", subject = "renamed", crate = ib)]
    pub(super) async fn by_extern_crate(_tx: &mut ib::sqlx::SqliteConnection) -> Result<(), ib::HandlerError> {
        Ok(())
    }

    #[facade::inbox::inbox_handler(group = "f87", subject = "facade", crate = facade::inbox)]
    pub(super) async fn by_relative_path(
        _meta: facade::inbox::Meta,
        tx: &mut Connection,
    ) -> Result<(), ib::HandlerError> {
        let _ = tx;
        Ok(())
    }

    #[inbox_handler(group = "f87", subject = "glob", ack = "at_most_once", crate = crate::hygiene::renamed::flat)]
    pub(super) async fn by_absolute_path() -> Result<(), ib::HandlerError> {
        Ok(())
    }

    use facade::inbox::{inbox_handler, sqlx::SqliteConnection as Connection};
}

#[tokio::test]
async fn f87_the_runtime_may_have_another_name() {
    let mut connection = connection().await;
    assert!(renamed::by_extern_crate(&mut connection).await.is_ok());
    assert!(
        renamed::by_relative_path(inbox_runtime::Meta::builder().build(), &mut connection)
            .await
            .is_ok()
    );
    assert!(renamed::by_absolute_path().await.is_ok());
    assert_eq!(linked("f87").await.len(), 3);
}

#[tokio::test]
async fn f87_f91_a_strict_crate_of_the_edition_before_may_know_the_runtime_by_another_name_only() {
    let mut connection = connection().await;
    // There is no such table, which shows that it is the function that was called.
    let answers = [
        inbox_tests_handlers::bill(&mut connection).await,
        inbox_tests_handlers::shipping::ship(&mut connection).await,
    ];
    assert!(answers.iter().all(Result::is_err), "{answers:?}");
    let handlers = linked("linked").await;
    let names: Vec<_> = handlers.iter().map(|meta| meta.name).collect();
    assert_eq!(
        names,
        ["inbox_tests_handlers::bill", "inbox_tests_handlers::shipping::ship"]
    );
}

mod patterns {
    //! Arguments of every pattern, and names that generated code might use itself.

    use std::sync::Arc;

    use inbox_runtime::{
        Bytes, DeliveryContext, FromDelivery, HandlerError, Json, Meta, Rejection, State, inbox_handler,
        sqlx::SqliteConnection,
    };

    #[derive(serde::Deserialize)]
    pub(super) struct Order {
        pub(super) id: u64,
        #[allow(dead_code, reason = "left out by the pattern")]
        pub(super) amount: u64,
    }

    impl FromDelivery for Order {
        fn from_delivery(given: &DeliveryContext<'_>) -> Result<Self, Rejection> {
            Json::from_delivery(given).map(|Json(order)| order)
        }
    }

    #[inbox_handler(group = "f88", subject = "patterns", ack = "at_least_once")]
    pub(super) async fn patterns(
        _: Meta,
        Order { id, .. }: Order,
        mut r#type: Json<u64>,
        Json((a, [b, _])): Json<(u8, [u8; 2])>,
    ) -> Result<(), HandlerError> {
        r#type.0 += id + u64::from(a + b);
        if r#type.0 == 10 {
            Ok(())
        } else {
            Err("another sum".into())
        }
    }

    // A plain name in the expansion would be a pattern that matches these.
    #[allow(non_upper_case_globals, dead_code, reason = "the expansion must not see them")]
    mod consts {
        pub(crate) const tx: () = ();
        pub(crate) const ctx: () = ();
        pub(crate) const arg0: () = ();
        pub(crate) const context: () = ();
        pub(crate) const result: () = ();
        pub(crate) const delivery: () = ();
    }
    #[allow(unused_imports, reason = "the expansion must not see them")]
    use consts::*;

    #[inbox_handler(group = "f88", subject = "names")]
    pub(super) async fn names(
        msg: Bytes,
        ctx_: Meta,
        __connection: &mut SqliteConnection,
        result_: Option<Json<u8>>,
        rejected: Result<Json<u8>, Rejection>,
    ) -> Result<(), HandlerError> {
        let _ = (msg, ctx_, __connection, result_, rejected);
        Ok(())
    }

    #[inbox_handler(group = "f88", subject = "match", ack = "at_least_once")]
    pub(super) async fn r#match() -> Result<(), HandlerError> {
        Ok(())
    }

    #[inbox_handler(group = "f88", subject = "main", ack = "at_least_once")]
    pub(super) async fn main() -> Result<(), HandlerError> {
        Ok(())
    }

    #[inbox_handler(group = "f88", subject = "new", ack = "at_least_once")]
    #[allow(
        clippy::type_complexity,
        reason = "the borrow in it must not be taken for one of the argument's"
    )]
    pub(super) async fn new(_callback: State<Arc<dyn Fn(&str) -> bool + Send + Sync>>) -> Result<(), HandlerError> {
        Ok(())
    }
}

#[tokio::test]
async fn f88_arguments_may_have_any_pattern_and_any_name() {
    use inbox_runtime::{Bytes, Json, Meta, State};
    use patterns::Order;

    let meta = || Meta::builder().build();
    let order = Order { id: 1, amount: 2 };
    assert!(
        patterns::patterns(meta(), order, Json(2), Json((3, [4, 5])))
            .await
            .is_ok()
    );
    let mut connection = connection().await;
    let rejected = Err(inbox_runtime::Rejection::new("no"));
    assert!(
        patterns::names(Bytes::new(), meta(), &mut connection, None, rejected)
            .await
            .is_ok()
    );
    assert!(patterns::r#match().await.is_ok());
    assert!(patterns::main().await.is_ok());
    assert!(patterns::new(State(std::sync::Arc::new(str::is_empty))).await.is_ok());
}

mod generated {
    //! Handlers that `macro_rules!` writes: its fragments reach the attribute in invisible groups.

    use inbox_runtime::{HandlerError, Json, inbox_handler, sqlx::SqliteConnection};

    const GROUP: &str = "f88";

    macro_rules! handler {
        ($name:ident, $group:expr, $subject:literal, $connection:ty, $order:ty, $returns:ty) => {
            #[inbox_handler(group = $group, subject = $subject)]
            pub(super) async fn $name(tx: $connection, order: $order) -> $returns {
                let _ = (tx, order);
                Ok(())
            }
        };
    }

    macro_rules! behind {
        ($name:ident, $subject:expr, $connection:ty, $crate_path:path) => {
            #[inbox_handler(group = "f88", subject = $subject, crate = $crate_path)]
            pub(super) async fn $name(tx: &mut $connection) -> Result<(), HandlerError> {
                let _ = tx;
                Ok(())
            }
        };
    }

    handler!(on_order, "f88", "generated.one", &mut SqliteConnection, Json<u8>, Result<(), HandlerError>);
    handler!(on_other, GROUP, "generated.two", &mut SqliteConnection, Json<u8>, Result<(), HandlerError>);
    behind!(on_third, "generated.three", SqliteConnection, ::inbox_runtime);
}

#[tokio::test]
async fn f88_handlers_may_come_from_macro_rules() {
    let mut connection = connection().await;
    assert!(
        generated::on_order(&mut connection, inbox_runtime::Json(1))
            .await
            .is_ok()
    );
    assert!(
        generated::on_other(&mut connection, inbox_runtime::Json(1))
            .await
            .is_ok()
    );
    assert!(generated::on_third(&mut connection).await.is_ok());
    let handlers = linked("f88").await;
    assert_eq!(
        handlers
            .iter()
            .filter(|meta| meta.subject.starts_with("generated."))
            .count(),
        3
    );
}

#[tokio::test]
async fn f88_a_handler_may_stand_in_a_function_body_and_take_an_alias() {
    use inbox_runtime::{HandlerError, Json, inbox_handler};

    type Conn = SqliteConnection;
    #[derive(serde::Deserialize)]
    struct Order {
        id: u64,
    }

    #[inbox_handler(group = "f88", subject = "local")]
    async fn on_order(Json(order): Json<Order>, tx: &mut Conn) -> Result<(), HandlerError> {
        inbox_runtime::sqlx::query("SELECT ?")
            .bind(i64::try_from(order.id)?)
            .execute(&mut *tx)
            .await?;
        Ok(())
    }

    assert!(on_order(Json(Order { id: 1 }), &mut connection().await).await.is_ok());
}

mod namesakes {
    //! Functions of one name, in two modules and in two function bodies.

    use inbox_runtime::{HandlerError, inbox_handler};

    pub(super) mod one {
        use super::*;

        #[inbox_handler(group = "f88-names", subject = "one", ack = "at_least_once")]
        pub(crate) async fn on_order() -> Result<(), HandlerError> {
            Ok(())
        }
    }

    pub(super) mod other {
        use super::*;

        #[inbox_handler(group = "f88-names", subject = "other", ack = "at_least_once")]
        pub(crate) async fn on_order() -> Result<(), HandlerError> {
            Err("the other one".into())
        }
    }

    pub(super) fn first() {
        #[inbox_handler(group = "f88-names", subject = "first", ack = "at_least_once")]
        #[allow(dead_code, reason = "it only has to be registered")]
        async fn on_payment() -> Result<(), HandlerError> {
            Ok(())
        }
    }

    pub(super) fn second() {
        #[inbox_handler(group = "f88-names", subject = "second", ack = "at_least_once")]
        #[allow(dead_code, reason = "it only has to be registered")]
        async fn on_payment() -> Result<(), HandlerError> {
            Ok(())
        }
    }
}

#[tokio::test]
async fn f88_two_functions_may_have_one_name() {
    namesakes::first();
    namesakes::second();
    assert!(namesakes::one::on_order().await.is_ok());
    assert!(namesakes::other::on_order().await.is_err());
    let handlers = linked("f88-names").await;
    let found: Vec<_> = handlers
        .iter()
        .map(|meta| (meta.subject, meta.name.rsplit("::").next().expect("a name")))
        .collect();
    let expected = [
        ("first", "on_payment"),
        ("one", "on_order"),
        ("other", "on_order"),
        ("second", "on_payment"),
    ];
    assert_eq!(found, expected);
}
