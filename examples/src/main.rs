//! Says which examples there are, how to run them, and which of them this build leaves out.

/// An example: its name, what it shows, and whether the features that it needs are on.
const EXAMPLES: [(&str, &str, bool); 3] = [
    (
        "quickstart",
        "an event that was sent twice, a handler that fails halfway, two services that handle the same event",
        cfg!(all(feature = "embedded", feature = "sqlite")),
    ),
    (
        "ack_lab",
        "what each way to acknowledge does to an invoice when the handler fails halfway",
        cfg!(all(feature = "embedded", feature = "sqlite")),
    ),
    (
        "observed",
        "the spans, the metrics and the health of an inbox while it works and while it stops",
        cfg!(all(feature = "embedded", feature = "sqlite", feature = "observed")),
    ),
];

fn main() {
    println!("run an example with `cargo run -p inbox-examples --example NAME`:");
    for (name, what, built) in EXAMPLES {
        let left_out = if built {
            ""
        } else {
            " (left out: needs the default features)"
        };
        println!("  {name:<12}{what}{left_out}");
    }
}
