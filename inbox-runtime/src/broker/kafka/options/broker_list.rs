//! The list of brokers in a URL.

/// The port of a broker whose address has none.
const DEFAULT_PORT: u16 = 9092;

/// Checks a list of addresses, and adds missing ports.
pub(super) fn parse(list: &str) -> Result<String, String> {
    let mut brokers = Vec::new();
    for (index, host) in list.split(',').map(str::trim).enumerate() {
        // The text isn't repeated: it may be a password.
        let invalid = || {
            format!(
                "the broker's URL: address number {} is not valid; write hosts and ports as in kafka://one:9092,two:9092",
                index + 1
            )
        };
        // Skips the colons of an IPv6 address in brackets.
        let start = host.rfind(']').map_or(0, |end| end + 1);
        let (name, port) = match host[start..].find(':') {
            Some(colon) => host.split_at(start + colon),
            None => (host, ""),
        };
        let port = match port.strip_prefix(':') {
            None => DEFAULT_PORT,
            Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or_else(invalid)?,
        };
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-[]:%".contains(c);
        if name.is_empty() || !name.chars().all(is_allowed) {
            return Err(invalid());
        }
        brokers.push(format!("{name}:{port}"));
    }
    Ok(brokers.join(","))
}
