//! What hostile code inside tries first.

mod needs_root {

    use crate::host::{Host, create, run, run_as};

    /// Each is run as root inside and must print what is expected.
    const ATTACKS: &[(&str, &str, &str)] = &[
        ("new user namespace", "unshare -U true 2>&1; echo $?", "not implemented"),
        ("new user namespace by clone3", CLONE3, "28"),
        ("mount", "mount -t tmpfs x /mnt 2>&1; echo $?", "denied|not implemented|permitted"),
        ("device node", "mknod /tmp/d b 254 0 2>&1; echo $?", "not permitted"),
        (
            "host's kernel settings",
            "echo 1 > /proc/sys/kernel/panic 2>&1; echo $?",
            "Read-only|denied|2",
        ),
        ("sysrq", "echo b > /proc/sysrq-trigger 2>&1; echo $?", "denied|nonexistent|2|1"),
        ("cgroup", "mkdir /sys/fs/cgroup/x 2>&1; echo $?", "Read-only"),
        ("write below /usr", "touch /usr/bin/x 2>&1; echo $?", "Read-only"),
        ("PID 1's memory", "cat /proc/1/environ 2>&1; echo $?", "denied|Permission"),
        (
            "PID 1's descriptors",
            "cat /proc/1/fd/3 2>&1; readlink /proc/1/fd/4; echo $?",
            "denied|Permission",
        ),
        ("raw socket", PACKET_SOCKET, "97"),
        ("keyring", KEYCTL, "38"),
        ("host's files", "ls /root /home /srv; ls -d /lost+found 2>&1", "cannot access"),
        ("kernel log", "dmesg 2>&1 | head -1; echo", "not permitted|not implemented|denied"),
    ];

    const PACKET_SOCKET: &str = "python3 -c '
import socket
try:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3); print(\"open\")
except OSError as error: print(error.errno)'";

    const CLONE3: &str = "python3 -c '
import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
args = struct.pack(\"11Q\", 0x10000000, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0)
pid = libc.syscall(435, args, len(args))
print(ctypes.get_errno() if pid < 0 else \"made\")'";

    const KEYCTL: &str = "python3 -c '
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall(250, 0, -3, 1); print(ctypes.get_errno())'";

    #[tokio::test]
    async fn root_inside_cannot_touch_the_host() {
        let host = Host::new();
        let driver = host.driver().await;
        let spec = create(&driver).await;
        for (what, command, expected) in ATTACKS {
            let (_, text) = run_as(&driver, spec.id, Some("root"), command).await;
            let held = expected.split('|').any(|part| text.contains(part));
            assert!(held, "{what}: {text:?} has none of {expected:?}");
        }
        driver.close().await;
    }

    #[tokio::test]
    async fn each_sandbox_has_uids_processes_and_a_network_of_its_own() {
        let host = Host::new();
        let driver = host.driver().await;
        let (one, two) = (create(&driver).await, create(&driver).await);
        let data = host.path().join("data");
        let uid = |id| crate::host::run_record(&data, id)["uid_base"].as_i64().unwrap();
        assert!((uid(one.id) - uid(two.id)).abs() >= 65_536);
        let (_, map) = run(&driver, one.id, "cat /proc/self/uid_map").await;
        let words: Vec<&str> = map.split_whitespace().collect();
        assert_eq!(words, ["0", &uid(one.id).to_string(), "65536"]);
        let (_, count) = run(&driver, one.id, "ls /proc | grep -c '^[0-9]'").await;
        assert!(count.trim().parse::<u32>().unwrap() < 10, "{count}");
        let (_, links) = run(&driver, one.id, "cat /proc/net/dev | grep -c :").await;
        assert_eq!(links.trim(), "1", "only lo");
        let (_, reach) =
            run(&driver, one.id, "python3 -c 'import socket; socket.create_connection((\"1.1.1.1\", 80), 2)' 2>&1 | tail -1").await;
        assert!(reach.contains("unreachable"), "{reach}");
        let serve = "python3 -m http.server 8000 --bind 127.0.0.1 >/dev/null 2>&1 & \
                     for i in $(seq 50); do python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8000), 1)' 2>/dev/null && echo up && break; sleep 0.1; done; kill %1";
        let (_, up) = run(&driver, one.id, serve).await;
        assert!(up.contains("up"), "its own loopback works: {up}");
        driver.close().await;
    }

    #[tokio::test]
    async fn its_environment_is_sealed_on_the_disk() {
        let host = Host::new();
        let driver = host.driver().await;
        let spec = create(&driver).await;
        let file = host.path().join("data/sandboxes").join(spec.id.bare()).join("spec.json");
        let text = std::fs::read_to_string(file).unwrap();
        assert!(text.contains("sealed_env") && !text.contains("GREETING"), "{text}");
        driver.close().await;
    }
}
