//! Checks names and serial numbers of disks and groups.

/// Checks a label. A longer serial would be cut in the guest, and thread names have limits.
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
