//! The same walls where no BPF program may be loaded: what an ordinary user's sandboxes get.

mod needs_root {
    use std::time::Duration;

    use driver_linux::egress::Verdict;

    use crate::egress::inside::{self, Inside};
    use crate::egress::outside::Outside;

    const SOON: Duration = Duration::from_secs(3);
    const USUAL: &[&str] = &["allowed.test", "127.0.0.1/32"];

    #[tokio::test]
    async fn allowed_names_are_reached_and_carry_much() {
        inside::steer_by_nftables();
        let outside = Outside::http().await;
        let inside = Inside::new(USUAL).await;
        let port = outside.port;
        let answer = inside.run(&format!("curl -sS http://allowed.test:{port}/")).await;
        assert_eq!(answer.good(), format!("hello allowed.test:{port}"));
        let many = format!(
            "for i in 1 2 3 4 5 6 7 8; do curl -sS http://allowed.test:{port}/ & done; wait"
        );
        assert_eq!(inside.run(&many).await.good().matches("hello").count(), 8);
        inside.close().await;
    }

    #[tokio::test]
    async fn the_rest_is_refused_at_once() {
        inside::steer_by_nftables();
        let inside = Inside::new(USUAL).await;
        let named = inside.run_within(SOON, "curl -sS http://denied.test/").await;
        assert_eq!(named.code, 6, "{named:?}");
        for address in ["1.1.1.1", "10.0.0.1", "169.254.169.254", "198.18.0.7", "198.19.255.255:1"]
        {
            let answer = inside.run_within(SOON, &format!("curl -sS http://{address}/")).await;
            assert!(answer.was_refused(), "{address}: {answer:?}");
        }
        let log = inside.ended(2).await;
        assert!(log.iter().all(|access| access.verdict != Verdict::Ended), "{log:?}");
        inside.close().await;
    }

    #[tokio::test]
    async fn a_server_inside_catches_nothing_that_is_meant_for_the_outside() {
        inside::steer_by_nftables();
        let inside = Inside::new(USUAL).await;
        let catch = "python3 -c '
import socket
tcp = socket.create_server((\"0.0.0.0\", 443))
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind((\"0.0.0.0\", 5353))
udp.settimeout(0.5)
own = socket.create_connection((\"127.0.0.1\", 443))
tcp.settimeout(1)
tcp.accept()
try:
    out = socket.create_connection((\"1.1.1.1\", 443), timeout=2)
    assert out.recv(1) == b\"\"
except (ConnectionResetError, ConnectionRefusedError):
    pass
try:
    tcp.accept()
    print(\"caught tcp\")
except TimeoutError:
    pass
away = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
away.connect((\"9.9.9.9\", 5353))
try:
    away.send(b\"x\")
    away.settimeout(1)
    away.recv(1)
except ConnectionRefusedError:
    print(\"udp refused\")
try:
    udp.recv(1)
    print(\"caught udp\")
except TimeoutError:
    pass
'";
        let answer = inside.run_within(Duration::from_secs(10), catch).await;
        assert_eq!(answer.good().trim(), "udp refused", "{answer:?}");
        inside.close().await;
    }

    #[tokio::test]
    async fn sockets_made_again_are_steered_to() {
        inside::steer_by_nftables();
        let outside = Outside::http().await;
        let mut inside = Inside::new(USUAL).await;
        inside.stop_serving().await;
        inside.make_sockets_again();
        inside.serve(USUAL);
        let port = outside.port;
        let answer = inside.run(&format!("curl -sS http://allowed.test:{port}/")).await;
        assert_eq!(answer.good(), format!("hello allowed.test:{port}"));
        inside.close().await;
    }
}
