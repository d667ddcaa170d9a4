use proptest::prelude::*;

use super::*;

fn policy(rules: &[&str]) -> Policy {
    Policy::parse(&rules.iter().map(|r| (*r).to_owned()).collect::<Vec<_>>()).unwrap()
}

#[test]
fn names_match_exactly_or_below_and_by_port() {
    let p = policy(&["example.com:443", "*.packages.example"]);
    assert!(p.allows("example.com", 443));
    assert!(p.allows("EXAMPLE.com.", 443));
    assert!(!p.allows("example.com", 80));
    assert!(!p.allows("www.example.com", 443));
    assert!(p.allows("files.packages.example", 1));
    assert!(!p.allows("packages.example", 443));
    assert!(!p.allows("evilpackages.example", 443));
    assert!(p.allows_name("example.com") && !p.allows_name("example.org"));
    assert!(!p.allows_address("93.184.216.34".parse().unwrap(), 443));
}

#[test]
fn addresses_need_a_net_rule_and_open_never_reaches_inside() {
    let p = policy(&["10.1.0.0/16:5432", "[2001:db8::/32]:443"]);
    assert!(p.allows_address("10.1.2.3".parse().unwrap(), 5432));
    assert!(p.allows_address("::ffff:10.1.2.3".parse().unwrap(), 5432));
    assert!(!p.allows_address("10.2.2.3".parse().unwrap(), 5432));
    let open = Policy::open();
    assert!(open.allows_address("1.1.1.1".parse().unwrap(), 53));
    for inside in [
        "127.0.0.1",
        "10.0.0.1",
        "169.254.169.254",
        "192.168.1.1",
        "172.16.0.1",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "fc00::1",
        "fe80::1",
        "::ffff:127.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "198.18.0.1",
    ] {
        assert!(!open.allows_address(inside.parse().unwrap(), 80), "{inside}");
    }
}

#[test]
fn only_the_public_rule_is_open() {
    assert!(Policy::open().is_open(443));
    assert!(policy(&["public:443"]).is_open(443));
    assert!(!policy(&["public:443"]).is_open(80));
    assert!(!policy(&["*.example.com", "0.0.0.0/0"]).is_open(443));
}

#[test]
fn a_host_name_has_one_spelling() {
    assert_eq!(host_name("Example.COM."), Some("example.com".into()));
    assert_eq!(host_name("_dmarc.a-b.c"), Some("_dmarc.a-b.c".into()));
    for bad in ["", ".", "a..b", ".a", "a b", "a\0b", "é.com", "a..", &"a".repeat(64)] {
        assert_eq!(host_name(bad), None, "{bad:?}");
    }
}

#[test]
fn bad_rules_are_refused() {
    for bad in ["", "a b", "host:0", "host:99999", "*.", "*", "http://x", "[::1]x", "a..b"] {
        let result = bad.parse::<Rule>();
        assert!(result.is_err() || bad == "*", "{bad}: {result:?}");
    }
}

proptest! {
    #[test]
    fn rules_survive_a_round_trip(text in "[a-z0-9.*:\\[\\]/-]{0,30}") {
        if let Ok(rule) = text.parse::<Rule>() {
            prop_assert_eq!(rule.to_string().parse::<Rule>().unwrap(), rule);
        }
    }
}
