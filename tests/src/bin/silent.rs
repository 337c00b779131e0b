//! A program that is `inbox_runtime::run()` and nothing else: it has no subscriber of its own.

inbox_runtime::link!(inbox_tests_handlers);

#[tokio::main]
async fn main() -> Result<(), inbox_runtime::Error> {
    inbox_runtime::run().await
}
