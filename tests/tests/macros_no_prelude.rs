//! Handlers without a prelude, and beside modules that have the names of crates: a crate of its own, as both hold for all of it.
#![no_implicit_prelude]
#![allow(dead_code, reason = "the modules only have to be in scope")]
#![allow(clippy::unused_async, reason = "a handler is async, whether it waits or not")]

mod core {}
mod std {}
mod alloc {}
mod tokio {}
mod sqlx {}
mod serde_json {}
mod inventory {}
mod inbox_runtime {}
mod inbox_macros {}

#[::inbox_runtime::inbox_handler(group = "f86", subject = "no.prelude", timeout = "30s", max_attempts = 3)]
async fn on_order(
    tx: &mut ::inbox_runtime::sqlx::SqliteConnection,
    order: ::inbox_runtime::Json<u8>,
    missing: ::std::option::Option<::inbox_runtime::Json<u8>>,
) -> ::std::result::Result<(), ::inbox_runtime::HandlerError> {
    let _ = (tx, order, missing);
    ::std::result::Result::Ok(())
}

#[::inbox_runtime::inbox_handler(group = "f86", subject = "no.transaction", ack = "at_most_once", id = "position")]
async fn notify() -> ::std::result::Result<::inbox_runtime::Handled, ::inbox_runtime::HandlerError> {
    ::std::result::Result::Ok(::inbox_runtime::Handled::Skipped)
}

#[::core::prelude::v1::test]
fn f86_a_handler_compiles_without_a_prelude() {
    let runtime = ::tokio::runtime::Runtime::new().expect("a runtime");
    let linked = runtime.block_on(::inbox_tests::linked("f86"));
    ::std::assert_eq!(linked.len(), 2, "{linked:?}");
    ::std::assert_eq!(linked[0].name, "macros_no_prelude::on_order");
    ::std::assert_eq!(linked[1].name, "macros_no_prelude::notify");
}
