//! Figures about this process.
//!
//! Invariants: sizes in bytes.
//! Never: fails; a figure that cannot be had is zero.

/// The largest resident size that this process has had, in bytes; zero where the system does not
/// say.
#[must_use]
pub fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kibibytes
        .and_then(|text| text.trim().parse::<u64>().ok())
        .map_or(0, |kib| kib * 1024)
}
