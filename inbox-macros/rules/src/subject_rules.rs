//! The one rule for the names of groups, subjects and streams, the same on every broker.

/// The longest group name, in bytes.
pub const MAX_GROUP: usize = 128;
/// The longest name of a stream, in bytes.
pub const MAX_STREAM: usize = 255;
/// The longest subject, in bytes.
pub const MAX_SUBJECT: usize = 249;

/// Checks the name of a consumer group.
pub fn check_group(group: &str) -> Result<(), String> {
    if group.is_empty() {
        return Err("the group is empty; name the service that handles, as in \"billing\"".to_owned());
    }
    if group.len() > MAX_GROUP {
        return Err(format!(
            "the group is {} bytes long; at most {MAX_GROUP} are allowed",
            group.len()
        ));
    }
    match group.chars().find(|&c| !is_token_char(c) && c != '.') {
        None => Ok(()),
        Some(c) => Err(format!(
            "the group \"{}\" contains {}; letters, digits, `-`, `_` and `.` are allowed",
            group.escape_debug(),
            describe(c)
        )),
    }
}

/// Checks a subject to subscribe to: tokens between dots, where `*` stands for one token and a last `>` for one or more.
pub fn check_subject(subject: &str) -> Result<(), String> {
    check_tokens(subject, true)
}

/// Checks a subject to publish to: tokens between dots, without wildcards.
pub fn check_publish_subject(subject: &str) -> Result<(), String> {
    check_tokens(subject, false)
}

/// Checks the name of a stream.
pub fn check_stream(stream: &str) -> Result<(), String> {
    if stream.is_empty() {
        return Err("the stream is empty; name the one that holds the subject, as in \"ORDERS\"".to_owned());
    }
    if stream.len() > MAX_STREAM {
        return Err(format!(
            "the stream's name is {} bytes long; at most {MAX_STREAM} are allowed",
            stream.len()
        ));
    }
    let forbidden = |&c: &char| c.is_whitespace() || c.is_control() || ".*>/\\".contains(c);
    match stream.chars().find(forbidden) {
        None => Ok(()),
        Some(c) => Err(format!(
            "the stream \"{}\" contains {}, which no stream's name may have",
            stream.escape_debug(),
            describe(c)
        )),
    }
}

fn check_tokens(subject: &str, wildcards: bool) -> Result<(), String> {
    if subject.is_empty() {
        return Err("the subject is empty; name what is handled, as in \"order.created\"".to_owned());
    }
    if subject.len() > MAX_SUBJECT {
        return Err(format!(
            "the subject is {} bytes long; at most {MAX_SUBJECT} are allowed",
            subject.len()
        ));
    }
    let shown = subject.escape_debug();
    let mut tokens = subject.split('.').peekable();
    while let Some(token) = tokens.next() {
        match token {
            "" => {
                return Err(format!(
                    "the subject \"{shown}\" has an empty token; write tokens between single dots"
                ));
            }
            "*" | ">" if !wildcards => {
                return Err(format!(
                    "the subject \"{shown}\" has a wildcard; a message has one subject"
                ));
            }
            "*" => {}
            ">" if tokens.peek().is_none() => {}
            ">" => {
                return Err(format!(
                    "the subject \"{shown}\" goes on after `>`, which must be the last token"
                ));
            }
            _ => {
                if let Some(c) = token.chars().find(|&c| !is_token_char(c)) {
                    let hint = if matches!(c, '*' | '>') {
                        ", and a wildcard must be a whole token"
                    } else {
                        ""
                    };
                    return Err(format!(
                        "the subject \"{shown}\" contains {}; letters, digits, `-`, `_` and dots are allowed{hint}",
                        describe(c)
                    ));
                }
            }
        }
    }
    Ok(())
}

fn is_token_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

fn describe(c: char) -> String {
    match c {
        ' ' => "a space".to_owned(),
        c => format!("`{}`", c.escape_debug()),
    }
}
