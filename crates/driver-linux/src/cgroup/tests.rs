use model::Limits;

use super::limits::cpu_quota_usec;
use super::*;

const HYBRID: &str = "\
30 24 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
31 24 0:27 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
32 24 0:28 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

#[test]
fn mounts_of_a_hybrid_host_are_found() {
    assert_eq!(unified_mount(HYBRID), Some("/sys/fs/cgroup/unified".into()));
    assert_eq!(legacy_mount(HYBRID, "cpu"), Some("/sys/fs/cgroup/cpu".into()));
    assert_eq!(legacy_mount(HYBRID, "pids"), None);
}

#[test]
fn the_cpu_quota_is_the_share_of_all_processors() {
    let limits =
        |vcpu, cpu_fraction| Limits { vcpu, cpu_fraction, memory_mib: 512, pids: 100, disk_gb: 5 };
    assert_eq!(cpu_quota_usec(&limits(1, 0.5)), 50_000);
    assert_eq!(cpu_quota_usec(&limits(4, 1.0)), 400_000);
    assert_eq!(cpu_quota_usec(&limits(1, 0.000_1)), 1000);
}

#[test]
fn counters_are_read_by_whole_key() {
    assert_eq!(value_of("oom_kill_disable 0\noom_kill 3\n", "oom_kill"), Some(3));
    assert_eq!(value_of("populated 1\nfrozen 0\n", "frozen"), Some(0));
    assert_eq!(value_of("", "frozen"), None);
}
