//! A preprocessor of mdBook, named in `book.toml`: reads the book as JSON and writes it with the links of the site.

use std::io;

use inbox_tests::guide::site_text;
use serde_json::Value;

/// Every chapter, on whatever level of the book, has its text as `content`.
fn rewrite(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(rewrite),
        Value::Object(fields) => {
            if let Some(Value::String(text)) = fields.get_mut("content") {
                *text = site_text(text);
            }
            fields.values_mut().for_each(rewrite);
        }
        _ => {}
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // `supports NAME`: it is right for every renderer.
    if std::env::args().nth(1).is_some() {
        return Ok(());
    }
    let (_context, mut book): (Value, Value) = serde_json::from_reader(io::stdin())?;
    rewrite(&mut book);
    serde_json::to_writer(io::stdout(), &book)?;
    Ok(())
}
