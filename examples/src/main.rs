//! Says which examples there are, how to run them, and which of them this build leaves out.

/// An example: its name, what it shows, the features that it needs, and whether they are on.
const EXAMPLES: [(&str, &str, &str, bool); 3] = [
    (
        "quickstart",
        "an event that was sent twice, a handler that fails halfway, two services that handle the same event",
        "embedded,sqlite",
        cfg!(all(feature = "embedded", feature = "sqlite")),
    ),
    (
        "ack_lab",
        "what each way to acknowledge does to an invoice when the handler fails halfway",
        "a broker and a database",
        cfg!(all(
            any(feature = "embedded", feature = "nats"),
            any(feature = "sqlite", feature = "postgres")
        )),
    ),
    (
        "nats_postgres",
        "a service on NATS JetStream and PostgreSQL: publishes, handles, and shows what a redelivery does",
        "nats,postgres",
        cfg!(all(feature = "nats", feature = "postgres")),
    ),
];

fn main() {
    println!("run an example with `cargo run -p inbox-examples --example NAME`:");
    for (name, what, features, built) in EXAMPLES {
        let left_out = if built {
            String::new()
        } else {
            format!(" (left out: needs --features {features})")
        };
        println!("  {name:<16}{what}{left_out}");
    }
}
