//! Named points at which a test ends the process as a kill would: at once, without any clean-up.
//!
//! `MILLSTREAM_FAILPOINT=name@3` ends it when the point is reached for the third time. With
//! `MILLSTREAM_FAILPOINT=file:PATH` the file holds `name@3`; it is read whenever a point is
//! reached, so a running process can be armed, and counts from then on.
//!
//! Invariants: without the feature `failpoints` a point is nothing at all.
//! Never: changes what the process does before its end.

/// Ends the process here, where this point is armed and its turn has come.
#[cfg(feature = "failpoints")]
pub(crate) fn hit(name: &str) {
    use std::sync::{Mutex, PoisonError};
    static REACHED: Mutex<(String, u64)> = Mutex::new((String::new(), 0));
    let Ok(source) = std::env::var("MILLSTREAM_FAILPOINT") else {
        return;
    };
    let armed = match source.strip_prefix("file:") {
        Some(path) => std::fs::read_to_string(path).unwrap_or_default(),
        None => source,
    };
    let Some((point, turn)) = armed.trim().split_once('@') else {
        return;
    };
    if point != name {
        return;
    }
    let mut reached = REACHED.lock().unwrap_or_else(PoisonError::into_inner);
    if reached.0 != armed {
        *reached = (armed.clone(), 0);
    }
    reached.1 += 1;
    if turn.parse() == Ok(reached.1) {
        std::process::abort();
    }
}

/// Nothing.
#[cfg(not(feature = "failpoints"))]
#[inline]
pub(crate) fn hit(_: &str) {}
