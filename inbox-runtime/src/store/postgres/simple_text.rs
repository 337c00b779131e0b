//! Values of messages as text in a simple query, which has no arguments: nothing in them can mean anything to a parser, whatever
//! the server's settings are.

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Appends a text: literally if it consists of letters, digits and a few harmless signs, else in hexadecimal.
pub(super) fn push_text(sql: &mut String, text: &str) {
    let plain = |c: u8| c.is_ascii_alphanumeric() || b"-_.:/~@+=, ".contains(&c);
    if text.bytes().all(plain) {
        sql.push('\'');
        sql.push_str(text);
        sql.push('\'');
        return;
    }
    sql.push_str("convert_from(");
    push_bytes(sql, Some(text.as_bytes()));
    sql.push_str(", 'UTF8')");
}

/// Appends bytes in hexadecimal, or NULL.
pub(super) fn push_bytes(sql: &mut String, bytes: Option<&[u8]>) {
    let Some(bytes) = bytes else {
        sql.push_str("NULL");
        return;
    };
    sql.push_str("decode('");
    for byte in bytes {
        sql.push(char::from(DIGITS[usize::from(byte >> 4)]));
        sql.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    sql.push_str("', 'hex')");
}
