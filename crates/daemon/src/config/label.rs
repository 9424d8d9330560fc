//! What disks and groups can be called.

/// A guest would read a longer serial as another one, and threads cannot be called just anything.
pub fn check_label(what: &str, of: &str, text: &str, bytes_max: usize) -> Result<(), String> {
    match text {
        "" => Err(format!("the {what} of a {of} is empty")),
        _ if text.len() > bytes_max => {
            Err(format!("the {of}'s {what} {text:?} is longer than {bytes_max} bytes"))
        }
        _ if text.contains(char::is_control) => {
            Err(format!("the {of}'s {what} {text:?} has control characters"))
        }
        _ => Ok(()),
    }
}
