//! What the id of a message may be: storable as it is, in every database.

/// The longest id, in bytes.
pub(crate) const MAX_ID: usize = 512;

/// Checks an id.
///
/// # Errors
///
/// What is wrong with it.
pub(crate) fn check(id: &str) -> Result<(), String> {
    if id.len() > MAX_ID {
        return Err(format!(
            "the message's id is {} bytes long; at most {MAX_ID} are allowed",
            id.len()
        ));
    }
    if id.contains('\0') {
        return Err("the message's id contains a NUL character, which databases can't store".to_owned());
    }
    Ok(())
}
