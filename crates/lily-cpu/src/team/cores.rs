//! How many threads are worth having.

use std::collections::BTreeSet;

/// Cores that this process may use: affinity and container quotas count, and the hardware threads of one
/// core count once, since they share what the matrix loops are bound by.
pub(super) fn usable() -> usize {
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    physical().map_or(available, |cores| cores.clamp(1, available))
}

/// Cores with a hardware thread that this process may run on; `None` where the system does not tell.
fn physical() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let siblings =
        |thread: usize| std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu{thread}/topology/thread_siblings_list")).ok();
    let cores: Option<BTreeSet<String>> = threads(allowed)?.into_iter().map(siblings).collect();
    Some(cores?.len())
}

/// Reads a list such as `0-3,8`.
fn threads(list: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        all.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_threads_are_read() {
        assert_eq!(threads("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(threads("5"), Some(vec![5]));
        assert_eq!(threads(""), None);
        assert_eq!(threads("0-x"), None);
    }

    #[test]
    fn there_is_at_least_one_and_no_more_than_available() {
        let available = std::thread::available_parallelism().map_or(1, usize::from);
        assert!((1..=available).contains(&usable()));
    }
}
