//! Real programs in a real network namespace whose only way out is our egress; the outside is
//! played by servers on this host's loopback, which the operator lists as addresses.

mod inside;
mod nftables;
mod outside;

mod needs_root {
    use std::time::Duration;

    use driver_linux::egress::Verdict;

    use super::inside::Inside;
    use super::outside::{self, Outside};

    const SOON: Duration = Duration::from_secs(3);

    /// `allowed.test` and what is below `below.test` are doubles on this host's loopback, listed.
    const USUAL: &[&str] = &["allowed.test", "*.below.test", "127.0.0.1/32"];

    #[tokio::test]
    async fn allowed_names_are_reached_with_real_programs() {
        let outside = Outside::http().await;
        let inside = Inside::new(USUAL).await;
        let port = outside.port;
        for name in ["allowed.test", "a.below.test"] {
            let answer = inside.run(&format!("curl -sS http://{name}:{port}/")).await;
            assert_eq!(answer.good(), format!("hello {name}:{port}"));
        }
        let python = format!(
            "python3 -c 'import urllib.request as u; \
             print(u.urlopen(\"http://allowed.test:{port}/\").read().decode(), end=\"\")'"
        );
        assert_eq!(inside.run(&python).await.good(), format!("hello allowed.test:{port}"));
        let log = inside.ended(3).await;
        assert_eq!(log[0].target, "allowed.test");
        assert_eq!(log[0].port, Some(port));
        assert_eq!(log[0].address, Some("127.0.0.1".parse().unwrap()));
        assert!(log.iter().all(|access| access.verdict == Verdict::Ended), "{log:?}");
        assert!(log[0].bytes_up > 50 && log[0].bytes_down > 30, "{:?}", log[0]);
        inside.close().await;
    }

    #[tokio::test]
    async fn tls_is_carried_to_its_own_host_only() {
        let outside = Outside::tls().await;
        let inside = Inside::new(USUAL).await;
        let port = outside.port;
        let good = inside.run(&format!("curl -sSk https://allowed.test:{port}/")).await;
        assert!(good.good().contains("TLSv1.3"), "{good:?}");
        let other = format!(
            "echo | openssl s_client -connect allowed.test:{port} -servername evil.test -brief"
        );
        assert_ne!(inside.run(&other).await.code, 0);
        let fronted = format!("curl -sSk --connect-to ::allowed.test:{port} https://evil.test/");
        assert_ne!(inside.run(&fronted).await.code, 0);
        let log = inside.ended(3).await;
        let verdicts: Vec<Verdict> = log.iter().map(|access| access.verdict).collect();
        assert_eq!(verdicts, [Verdict::Ended, Verdict::SniDiffers, Verdict::SniDiffers]);
        inside.close().await;
    }

    #[tokio::test]
    async fn http_to_another_host_is_cut() {
        let outside = Outside::http().await;
        let inside = Inside::new(USUAL).await;
        let port = outside.port;
        let fronted = format!("curl -sS -H 'Host: evil.test' http://allowed.test:{port}/");
        assert_ne!(inside.run(&fronted).await.code, 0);
        // Byte by byte, so that no single read shows the name.
        let slowly = format!(
            "python3 -c 'import socket, time\n\
             s = socket.create_connection((\"allowed.test\", {port}))\n\
             s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)\n\
             for c in b\"GET / HTTP/1.1\\r\\nHost: evil.test\\r\\n\\r\\n\":\n\
             \x20   s.send(bytes([c])); time.sleep(0.005)\n\
             print(s.recv(100))'"
        );
        let answer = inside.run(&slowly).await;
        assert!(answer.err.contains("ConnectionResetError"), "{answer:?}");
        let log = inside.ended(2).await;
        assert!(log.iter().all(|access| access.verdict == Verdict::HostDiffers), "{log:?}");
        assert_eq!(outside.requests(), 0, "a request reached a host under a false name");
        inside.close().await;
    }

    #[tokio::test]
    async fn refused_names_do_not_exist_at_once() {
        let inside = Inside::new(USUAL).await;
        for name in ["denied.test", "below.test", "allowed.test.evil.test"] {
            let answer = inside.run_within(SOON, &format!("curl -sS http://{name}/")).await;
            assert_eq!(answer.code, 6, "{answer:?}");
        }
        let log = inside.ended(3).await;
        assert!(log.iter().all(|access| access.verdict == Verdict::NotAllowed), "{log:?}");
        assert_eq!(log[0].target, "denied.test");
        inside.close().await;
    }

    #[tokio::test]
    async fn a_closed_policy_resolves_and_reaches_nothing() {
        let outside = Outside::http().await;
        let inside = Inside::new(&[]).await;
        let port = outside.port;
        let named = inside.run_within(SOON, &format!("curl -sS http://allowed.test:{port}/")).await;
        assert_eq!(named.code, 6, "{named:?}");
        for address in ["1.1.1.1", "10.0.0.1", "169.254.169.254", "198.18.0.7", "198.19.255.255:1"]
        {
            let answer = inside.run_within(SOON, &format!("curl -sS http://{address}/")).await;
            assert!(answer.was_refused(), "{address}: {answer:?}");
        }
        inside.close().await;
    }

    #[tokio::test]
    async fn numbers_are_refused_unless_listed() {
        let outside = Outside::http().await;
        let inside = Inside::new(&["allowed.test", "public:443", "127.0.0.1/32"]).await;
        let port = outside.port;
        let addresses = ["1.1.1.1", "8.8.8.8:53", "10.0.0.1:443", "192.168.1.1:443"];
        let hidden = ["169.254.169.254", "169.254.169.254:443", "100.64.0.1:443", "172.17.0.1:443"];
        for address in addresses.iter().chain(&hidden) {
            let answer = inside.run_within(SOON, &format!("curl -sS http://{address}/")).await;
            assert!(answer.was_refused(), "{address}: {answer:?}");
        }
        // 127.0.0.1 is the sandbox's own, whatever is listed: nothing of the host is there.
        let own = inside.run_within(SOON, &format!("curl -sS http://127.0.0.1:{port}/")).await;
        assert_eq!(own.code, 7, "{own:?}");
        let log = inside.ended(8).await;
        assert!(log.iter().all(|access| access.verdict == Verdict::NotAllowed), "{log:?}");
        inside.close().await;
        assert_eq!(outside.requests(), 0);
    }

    #[tokio::test]
    async fn a_name_that_resolves_to_the_inside_is_refused() {
        let outside = Outside::http().await;
        let inside = Inside::new(&["*.rebind.test", "public"]).await;
        let port = outside.port;
        let names = ["loopback", "private", "metadata", "mapped", "ula", "host"];
        for name in names {
            let command = format!("curl -sS http://{name}.rebind.test:{port}/");
            let answer = inside.run_within(SOON, &command).await;
            assert!(answer.was_refused(), "{name}: {answer:?}");
        }
        let log = inside.ended(names.len()).await;
        assert!(log.iter().all(|access| access.verdict == Verdict::NotPublic), "{log:?}");
        assert!(log.iter().all(|access| access.address.is_none()), "{log:?}");
        inside.close().await;
        assert_eq!(outside.requests(), 0);
    }

    #[tokio::test]
    async fn a_rule_with_a_port_opens_that_port_only() {
        let (one, two) = (Outside::http().await, Outside::http().await);
        let rule = format!("allowed.test:{}", one.port);
        let inside = Inside::new(&[rule.as_str(), "127.0.0.1/32"]).await;
        let good = inside.run(&format!("curl -sS http://allowed.test:{}/", one.port)).await;
        assert!(good.good().starts_with("hello"), "{good:?}");
        let bad = inside.run(&format!("curl -sS http://allowed.test:{}/", two.port)).await;
        assert!(bad.was_refused(), "{bad:?}");
        inside.close().await;
        assert_eq!(two.requests(), 0);
    }

    #[tokio::test]
    async fn udp_ipv6_and_raw_packets_go_nowhere() {
        let outside = Outside::udp().await;
        let inside = Inside::new(&["public", "allowed.test", "127.0.0.0/8"]).await;
        let script = include_str!("egress/nowhere.py");
        let answer = inside.run(&format!("python3 -c '{script}' {}", outside.port)).await;
        assert_eq!(answer.good().trim(), "all refused", "{answer:?}");
        assert_eq!(outside.requests(), 0);
        inside.close().await;
    }

    #[tokio::test]
    async fn programs_inside_reach_each_other_and_cannot_catch_egress() {
        let outside = Outside::http().await;
        let inside = Inside::new(USUAL).await;
        let port = outside.port;
        // A server of the sandbox on the same port, on every address it can find.
        let script = include_str!("egress/catcher.py");
        let answer = inside.run(&format!("python3 -c '{script}' {port}")).await;
        let expected = format!("inside inside inside6 outside allowed.test:{port}");
        assert_eq!(answer.good().trim(), expected, "{answer:?}");
        inside.close().await;
    }

    #[tokio::test]
    async fn a_server_that_speaks_first_is_heard() {
        let outside = Outside::greeter().await;
        let inside = Inside::new(USUAL).await;
        let script = format!(
            "python3 -c 'import socket\n\
             s = socket.create_connection((\"allowed.test\", {}), 5)\n\
             print(s.recv(100).decode(), end=\"\")\n\
             s.send(b\"SSH-2.0-me\\r\\n\"); print(s.recv(100).decode(), end=\"\")'",
            outside.port
        );
        assert_eq!(inside.run(&script).await.good(), "SSH-2.0-double\r\nSSH-2.0-me\r\n");
        inside.close().await;
    }

    #[tokio::test]
    async fn what_was_on_its_way_when_both_ends_were_done_arrives() {
        let outside = Outside::greeter().await;
        let inside = Inside::new(USUAL).await;
        // Says that it has said everything, and reads the echo late and slowly.
        let script = format!(
            "python3 -c 'import socket, threading, time\n\
             s = socket.create_connection((\"allowed.test\", {}), 10)\n\
             def send(): s.sendall(bytes(3000000)); s.shutdown(socket.SHUT_WR)\n\
             threading.Thread(target=send).start()\n\
             time.sleep(0.3); got = 0\n\
             while part := s.recv(200000): got += len(part); time.sleep(0.005)\n\
             print(got - len(\"SSH-2.0-double\\r\\n\"))'",
            outside.port
        );
        assert_eq!(inside.run(&script).await.good(), "3000000\n");
        let log = inside.ended(1).await;
        assert_eq!((log[0].bytes_up, log[0].verdict), (3_000_000, Verdict::Ended));
        inside.close().await;
    }

    #[tokio::test]
    async fn a_change_of_policy_cuts_what_it_forbids_and_nothing_else() {
        let outside = Outside::greeter().await;
        let inside = Inside::new(USUAL).await;
        let mut live = inside.hold_open("allowed.test", outside.port).await;
        inside.set_policy(&["allowed.test", "127.0.0.0/8"]);
        assert_eq!(live.ended_within(Duration::from_millis(300)).await, None);
        inside.set_policy(&["other.test", "127.0.0.0/8"]);
        let end = live.ended_within(SOON).await;
        assert_eq!(end.as_deref(), Some("ConnectionResetError\n"));
        let again = inside.run_within(SOON, "curl -sS http://allowed.test/").await;
        assert_eq!(again.code, 6, "{again:?}");
        assert_eq!(inside.ended(1).await[0].verdict, Verdict::PolicyChanged);
        assert!(outside.all_gone_within(SOON).await, "the outside end is still open");
        inside.close().await;
    }

    #[tokio::test]
    async fn more_connections_than_allowed_wait_for_their_turn() {
        let outside = Outside::http().await;
        let inside = Inside::with_connections(USUAL, 3).await;
        let url = format!("http://allowed.test:{}/[1-30]", outside.port);
        let many = format!("curl -sS --no-keepalive -H 'Connection: close' -Z '{url}'");
        let answer = inside.run(&many).await;
        assert_eq!(answer.good().matches("hello").count(), 30, "{answer:?}");
        inside.close().await;
    }

    #[tokio::test]
    async fn the_next_server_takes_over_where_the_last_one_left() {
        let outside = Outside::http().await;
        let mut inside = Inside::new(USUAL).await;
        let url = format!("http://allowed.test:{}/", outside.port);
        let first = inside.run(&format!("curl -sS {url}")).await;
        assert!(first.good().starts_with("hello"));
        inside.stop_serving().await;
        // Asked while nobody serves: both the query and the connection wait.
        let waiting = inside.start(&format!("curl -sS {url}"));
        tokio::time::sleep(Duration::from_millis(200)).await;
        inside.serve(USUAL);
        assert!(waiting.await.unwrap().good().starts_with("hello"));
        inside.close().await;
    }

    #[tokio::test]
    async fn sockets_can_be_made_again_when_all_who_held_them_are_gone() {
        let outside = Outside::http().await;
        let mut inside = Inside::new(USUAL).await;
        let url = format!("http://allowed.test:{}/", outside.port);
        inside.stop_serving().await;
        inside.make_sockets_again();
        inside.serve(USUAL);
        let answer = inside.run(&format!("curl -sS {url}")).await;
        assert!(answer.good().starts_with("hello"));
        inside.close().await;
    }

    #[tokio::test]
    async fn nothing_is_left_and_nothing_gets_out_after_close() {
        let outside = Outside::greeter().await;
        // Once before counting, so that what the runtime opens for itself is open.
        Inside::new(USUAL).await.close().await;
        let before = outside::open_descriptors();
        let inside = Inside::new(USUAL).await;
        let mut live = inside.hold_open("allowed.test", outside.port).await;
        let holder = inside.shut().await;
        assert_eq!(live.ended_within(SOON).await.as_deref(), Some("ConnectionResetError\n"));
        let late = holder.run_within(SOON, "curl -sS http://1.1.1.1/").await;
        assert_eq!(late.code, 7, "{late:?}");
        drop((live, holder));
        assert!(outside.all_gone_within(SOON).await);
        assert_eq!(outside::open_descriptors(), before);
    }
}
