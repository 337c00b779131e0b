//! A program whose handlers are in a library crate, which it links: it lists them.

inbox_runtime::link!(inbox_tests_handlers);

#[tokio::main]
async fn main() -> Result<(), inbox_runtime::Error> {
    let inbox = inbox_runtime::Inbox::builder().build().await?;
    for handler in inbox.handlers() {
        println!("{}", handler.name);
    }
    Ok(())
}
