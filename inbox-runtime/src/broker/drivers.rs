//! The brokers that are compiled in, by the schemes of their URLs.

use super::DynBroker;
use crate::config::Config;

/// A URL, for texts that ask for one.
pub(crate) const EXAMPLE_URL: &str = "embedded:broker.db";

/// A broker that a URL can name.
struct Driver {
    /// As it is listed where a URL fits none.
    name: &'static str,
    schemes: &'static [&'static str],
    /// Makes it of a URL, which was found at a place. The errors have the place and what to write instead.
    connect: fn(&str, &str, &Config) -> Result<DynBroker, Vec<String>>,
}

/// A row for each broker.
const DRIVERS: &[Driver] = &[
    #[cfg(feature = "embedded")]
    Driver {
        name: "embedded",
        schemes: &["embedded"],
        connect: |url, place, _| {
            let broker = super::embedded::Embedded::from_url(url);
            broker.map(DynBroker::new).map_err(|problem| at(place, &problem))
        },
    },
    #[cfg(feature = "kafka")]
    Driver {
        name: KAFKA,
        schemes: &[KAFKA],
        connect: |url, place, config| {
            let rest = url.strip_prefix("kafka:").unwrap_or(url);
            let rest = rest.strip_prefix("//").unwrap_or(rest);
            super::kafka::Kafka::from_url(rest, place, &config.kafka).map(DynBroker::new)
        },
    },
    #[cfg(feature = "nats")]
    Driver {
        name: NATS,
        schemes: &[NATS, "tls"],
        connect: |url, place, config| super::nats::Nats::from_url(url, place, &config.nats).map(DynBroker::new),
    },
];

// Those whose options may be set beside their URL.
const KAFKA: &str = "kafka";
const NATS: &str = "nats";

/// The broker that a URL names, which was found at `place`. The errors say what to write instead, and where.
pub(crate) fn connect(url: &str, place: &str, config: &Config) -> Result<DynBroker, Vec<String>> {
    let (scheme, _) = url.split_once(':').unwrap_or((url, ""));
    let driver = DRIVERS.iter().find(|driver| driver.schemes.contains(&scheme));
    warn_unused(config, driver.map(|driver| driver.name), "the broker is another one");
    match driver {
        Some(driver) => (driver.connect)(url, place, config),
        None => Err(at(place, &unknown(url))),
    }
}

/// Warns of options of brokers other than `used`, which nothing reads.
pub(crate) fn warn_unused(config: &Config, used: Option<&str>, why: &str) {
    let options = [
        (KAFKA, config.kafka.values().collect::<Vec<_>>()),
        (NATS, config.nats.values().collect()),
    ];
    for (broker, options) in options {
        if used != Some(broker) && !options.is_empty() {
            let places: Vec<_> = options.iter().map(|given| given.place.as_str()).collect();
            tracing::warn!(
                broker,
                places = places.join(", "),
                why,
                "options of a broker are not used"
            );
        }
    }
}

fn at(place: &str, problem: &dyn std::fmt::Display) -> Vec<String> {
    vec![format!("{place}: {problem}")]
}

/// Of the URL only the scheme is shown: the rest may have a password.
fn unknown(url: &str) -> String {
    let beginning = match crate::url::scheme(url) {
        Some(scheme) => format!("begins with `{scheme}:`, which this program was not built for"),
        None => "has no scheme".to_owned(),
    };
    let built_in: Vec<_> = DRIVERS.iter().map(|driver| driver.name).collect();
    let built_in = match &built_in[..] {
        [] => "none".to_owned(),
        names => names.join(", "),
    };
    format!(
        "the broker's URL {beginning}; built in: {built_in}; turn on the feature of that broker, or write for example \
         {EXAMPLE_URL}"
    )
}
