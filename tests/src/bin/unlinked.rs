//! A program whose handlers are in a library crate that stands in its `Cargo.toml` and in none of its source files.

#[tokio::main]
async fn main() -> Result<(), inbox_runtime::Error> {
    let inbox = inbox_runtime::Inbox::builder().build().await?;
    for handler in inbox.handlers() {
        println!("{}", handler.name);
    }
    Ok(())
}
