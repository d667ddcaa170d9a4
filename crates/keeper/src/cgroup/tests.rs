use model::Limits;

use super::limits::cpu_quota_usec;
use super::*;
use crate::plan::IoLimit;

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

/// A host whose version 2 has the io controller, or whose version 1 has blkio, or neither.
fn bounding(unified: Option<&Path>, legacy: Option<&Path>) -> Hierarchy {
    Hierarchy {
        unified: unified.map(Path::to_owned),
        unified_has: Vec::new(),
        legacy: Vec::new(),
        unified_has_io: unified.is_some(),
        legacy_io: legacy.map(Path::to_owned),
    }
}

fn io(bytes_per_second: Option<u64>, operations_per_second: Option<u64>) -> IoLimit {
    IoLimit { device: "8:16".into(), bytes_per_second, operations_per_second }
}

#[test]
fn the_disk_is_bounded_in_version_2_where_it_has_the_controller() {
    let dir = tempfile::tempdir().unwrap();
    let (unified, legacy) = (dir.path().join("unified"), dir.path().join("blkio"));
    std::fs::create_dir_all(unified.join("one")).unwrap();
    let own = rustix::process::getpid();
    let bounded = bounding(Some(&unified), Some(&legacy));
    assert!(bounded.bounds_io());
    for (limit, rule) in [
        (io(Some(1 << 20), Some(500)), "8:16 rbps=1048576 wbps=1048576 riops=500 wiops=500"),
        (io(Some(1 << 20), None), "8:16 rbps=1048576 wbps=1048576 riops=max wiops=max"),
        (io(None, Some(7)), "8:16 rbps=max wbps=max riops=7 wiops=7"),
    ] {
        let made = bounded.limit_io("one", own, &limit).unwrap();
        assert_eq!(made, Vec::<PathBuf>::new(), "its own group bounds it");
        assert_eq!(std::fs::read_to_string(unified.join("one/io.max")).unwrap(), rule);
    }
    assert!(!legacy.exists(), "version 1 is left alone");
    assert!(bounded.limit_io("none", own, &io(Some(1), None)).is_err(), "no such group");
}

#[test]
fn the_disk_is_bounded_in_version_1_where_version_2_cannot() {
    let dir = tempfile::tempdir().unwrap();
    let own = rustix::process::getpid();
    let bounded = bounding(None, Some(dir.path()));
    assert!(bounded.bounds_io());
    let made = bounded.limit_io("one", own, &io(Some(4096), None)).unwrap();
    let group = dir.path().join("one");
    assert!(made.iter().eq([&group]));
    let said = |file: &str| std::fs::read_to_string(group.join(file)).unwrap_or_default();
    for way in ["read", "write"] {
        assert_eq!(said(&format!("blkio.throttle.{way}_bps_device")), "8:16 4096");
        assert_eq!(said(&format!("blkio.throttle.{way}_iops_device")), "", "nothing was asked");
    }
    assert_eq!(said("cgroup.procs"), own.as_raw_nonzero().to_string());

    let neither = bounding(None, None);
    assert!(!neither.bounds_io());
    assert!(neither.limit_io("one", own, &io(Some(1), None)).is_err());
}

#[test]
fn a_controller_is_turned_on_from_the_root_to_our_own_group() {
    let root = tempfile::tempdir().unwrap();
    let unified = root.path().join("bastide/x");
    std::fs::create_dir_all(&unified).unwrap();
    turn_on(root.path(), &unified, "io").unwrap();
    for group in ["", "bastide", "bastide/x"] {
        let file = root.path().join(group).join("cgroup.subtree_control");
        assert_eq!(std::fs::read_to_string(file).unwrap(), "+io", "{group:?}");
    }
}
