//! What the benches share: figures of this process and of this machine's disk.
//!
//! Invariants: CPU time is user and system time of the whole process, in nanoseconds.
//! Never: a judgement; benches print figures, and ratios of figures from the same run.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

/// User and system time that this process has used so far.
#[must_use]
pub fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

/// The largest resident size that this process has had, in bytes; zero where the system does not
/// say.
#[must_use]
pub fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status_bytes(&status, "VmHWM:")
}

fn status_bytes(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kibibytes
        .and_then(|text| text.trim().parse::<u64>().ok())
        .map_or(0, |kib| kib * 1024)
}

/// Resident memory of a process that is its own, not pages of files, in bytes; zero where the
/// system does not say.
#[must_use]
pub fn resident_bytes(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"));
    status_bytes(&status.unwrap_or_default(), "RssAnon:")
}

/// Median and 99th percentile of `count` appends of 4 KiB with one fdatasync each, in milliseconds.
///
/// # Errors
/// Where the directory cannot be written.
pub fn bare_fdatasync_ms(directory: &Path, count: usize) -> std::io::Result<(f64, f64)> {
    let path = directory.join("fdatasync.probe");
    let mut file = std::fs::File::create(&path)?;
    let mut took = Vec::with_capacity(count);
    for _ in 0..count {
        let begin = tokio::time::Instant::now();
        file.write_all(&[7; 4096])?;
        file.sync_data()?;
        took.push(begin.elapsed());
    }
    std::fs::remove_file(path)?;
    Ok((quantile_ms(&mut took, 0.5), quantile_ms(&mut took, 0.99)))
}

/// The duration below which the fraction `quantile` lies, in milliseconds; sorts the durations.
pub fn quantile_ms(durations: &mut [Duration], quantile: f64) -> f64 {
    durations.sort_unstable();
    let at = ((durations.len() as f64 * quantile) as usize).min(durations.len().saturating_sub(1));
    durations
        .get(at)
        .map_or(0.0, |duration| duration.as_secs_f64() * 1_000.0)
}

/// The median of the values; sorts them.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
