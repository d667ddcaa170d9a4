//! Links to ports, what a browser gets for them, and hosts of their own.

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::inside::{Inside, a_moment};
use super::{ask, text};
use crate::client::{Client, PATIENCE};
use crate::harness::{Setup, TestServer};

const DOMAIN: &str = "[ports]\ndomain = 'box.example.com'\n";

/// The link's whole URL, its token, and the host of its own.
async fn link(client: &Client, sandbox: &str, port: u16) -> (String, String, String) {
    let made = client.post_nothing(&format!("{sandbox}/ports/{port}/link")).await.json(201);
    let url = made["url"].as_str().unwrap().to_owned();
    let (_, token) = url.split_once("bastide_link=").unwrap();
    let host = url.split('/').nth(2).unwrap().to_owned();
    (url.clone(), token.to_owned(), host)
}

#[tokio::test]
async fn a_link_opens_its_port_in_a_browser_and_nothing_else() {
    let (server, inside) = (Setup::with(DOMAIN).start().await, Inside::start().await);
    let sandbox = server.operator.sandbox().await;
    let (_, token, host) = link(&server.operator, &sandbox, inside.port).await;
    let bare = sandbox.rsplit('/').next().unwrap().trim_start_matches("sb-");
    let port = inside.port;
    assert!(host.starts_with(&format!("{port}-{bare}.box.example.com:")), "{host}");
    let nobody = server.nobody();
    let browser =
        [("host", host.as_str()), ("sec-fetch-mode", "navigate"), ("accept", "text/html")];
    let opened = ask(&nobody, "GET", &format!("/a?b=1&bastide_link={token}"), &browser).await;
    assert_eq!(opened.status, 303);
    assert_eq!(opened.header("location"), format!("http://{host}/a?b=1"));
    let cookie = opened.header("set-cookie").to_owned();
    assert!(
        cookie.contains("; Path=/; ") && cookie.contains("; HttpOnly; SameSite=Lax"),
        "{cookie}"
    );
    let cookie = cookie.split(';').next().unwrap();
    let with_cookie = [("host", host.as_str()), ("cookie", cookie)];
    let page = ask(&nobody, "GET", "/a?b=1", &with_cookie).await;
    let told = text(&page);
    assert!(told.starts_with("GET /a?b=1\n") && told.contains(&format!("host: {host}")), "{told}");
    assert!(!told.contains(&token), "the link got in: {told}");
    // Its own cookies stay its own, and with its own host.
    let cookies: Vec<&str> =
        page.headers.get_all("set-cookie").iter().map(|value| value.to_str().unwrap()).collect();
    assert_eq!(cookies, ["sid=1; Path=/"]);
    let both = format!("sid=1; {cookie}; b=2");
    let told = text(&ask(&nobody, "GET", "/", &[("host", &host), ("cookie", &both)]).await);
    assert!(told.contains("cookie: sid=1; b=2\n"), "{told}");
    // A program needs no cookie.
    let direct = ask(&nobody, "POST", &format!("/?bastide_link={token}"), &[("host", &host)]).await;
    assert!(text(&direct).starts_with("POST /\n"), "{direct:?}");
    // Another port, another sandbox, another token.
    let other = server.operator.sandbox().await;
    let other_host =
        host.replace(bare, other.rsplit('/').next().unwrap().trim_start_matches("sb-"));
    let other_port = host.replacen(&port.to_string(), "1", 1);
    for host in [&other_host, &other_port] {
        ask(&nobody, "GET", "/", &[("host", host), ("cookie", cookie)])
            .await
            .problem(401, "unauthorized");
        let path = format!("/?bastide_link={token}");
        ask(&nobody, "GET", &path, &[("host", host)]).await.problem(401, "unauthorized");
    }
    // And not the API.
    let answer = ask(&nobody, "GET", "/v1/sandboxes", &[("cookie", cookie)]).await;
    answer.problem(401, "unauthorized");
    server.operator.delete(&sandbox).await.json(200);
    ask(&nobody, "GET", "/", &with_cookie).await.problem(404, "not_found");
    server.stop().await;
}

#[tokio::test]
async fn the_path_form_of_a_link_has_a_cookie_for_that_path() {
    let (server, inside) = (TestServer::start().await, Inside::start().await);
    let sandbox = server.operator.sandbox().await;
    let (_, token, _) = link(&server.operator, &sandbox, inside.port).await;
    let nobody = server.nobody();
    let base = format!("{sandbox}/ports/{}", inside.port);
    let path = format!("{base}/x?bastide_link={token}");
    let opened = ask(&nobody, "GET", &path, &[("accept", "text/html")]).await;
    assert_eq!(
        (opened.status.as_u16(), opened.header("location")),
        (303, format!("{base}/x").as_str())
    );
    let cookie = opened.header("set-cookie");
    assert!(cookie.contains(&format!("; Path={base}; ")), "{cookie}");
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let page = ask(&nobody, "GET", &format!("{base}/x"), &[("cookie", &cookie)]).await;
    assert!(text(&page).starts_with("GET /x\n"));
    assert!(!text(&page).contains(&token));
    server.stop().await;
}

#[tokio::test]
async fn links_expire_and_have_bounds() {
    let (server, inside) = (TestServer::start().await, Inside::start().await);
    let operator = &server.operator;
    let sandbox = operator.sandbox().await;
    let path = format!("{sandbox}/ports/{}/link", inside.port);
    for seconds in [0, 604_801] {
        operator
            .post(&path, &json!({ "expires_seconds": seconds }))
            .await
            .refuses("expires_seconds");
    }
    operator.post(&path, &json!({ "seconds": 1 })).await.refuses("seconds");
    operator.post_nothing(&format!("{sandbox}/ports/49983/link")).await.refuses("port");
    let made = operator.post(&path, &json!({ "expires_seconds": 1 })).await.json(201);
    let url = made["path_url"].as_str().unwrap();
    let path = &url[url.find("/v1/").unwrap()..];
    a_moment().await;
    let answer = ask(&server.nobody(), "GET", path, &[]).await;
    answer.problem(401, "unauthorized");
    server.stop().await;
}

#[tokio::test]
async fn a_cookie_speaks_for_the_ports_own_pages_only() {
    let (server, inside) = (Setup::with(DOMAIN).start().await, Inside::start().await);
    let sandbox = server.operator.sandbox().await;
    let (_, token, host) = link(&server.operator, &sandbox, inside.port).await;
    let cookie = format!("bastide-port={token}");
    let own = format!("http://{host}");
    let neighbour = format!("http://1-{}", host.split_once('-').unwrap().1);
    let nobody = server.nobody();
    let check = async |method: &str, headers: &[(&str, &str)], status: u16| {
        let all = [&[("host", host.as_str()), ("cookie", cookie.as_str())], headers].concat();
        let answer = ask(&nobody, method, "/", &all).await;
        assert_eq!(answer.status.as_u16(), status, "{method} {headers:?}");
    };
    let (site, mode) = ("sec-fetch-site", "sec-fetch-mode");
    check("GET", &[], 200).await;
    check("POST", &[(site, "same-origin"), ("origin", &own)], 200).await;
    check("GET", &[(site, "none"), (mode, "navigate")], 200).await;
    check("GET", &[(site, "cross-site"), (mode, "navigate")], 200).await;
    check("GET", &[(site, "cross-site"), (mode, "no-cors")], 403).await;
    check("GET", &[(site, "same-site"), (mode, "no-cors")], 403).await;
    check("POST", &[(site, "same-site"), (mode, "navigate")], 403).await;
    check("POST", &[("origin", &neighbour)], 403).await;
    check("POST", &[("origin", "null")], 403).await;
    let socket = [("connection", "upgrade"), ("upgrade", "websocket"), ("origin", &neighbour)];
    check("GET", &socket, 403).await;
    server.stop().await;
}

#[tokio::test]
async fn the_api_is_not_at_a_sandboxs_host() {
    let (server, inside) = (Setup::with(DOMAIN).start().await, Inside::start().await);
    let operator = &server.operator;
    let sandbox = operator.sandbox().await;
    let (_, _, host) = link(operator, &sandbox, inside.port).await;
    // With the key it is the sandbox that answers, and it does not see the key.
    let answer = ask(operator, "GET", "/v1/sandboxes", &[("host", &host)]).await;
    let told = text(&answer);
    assert!(told.starts_with("GET /v1/sandboxes\n") && !told.contains("e2a_"), "{told}");
    for unknown in ["x.box.example.com", "80-x.box.example.com", "0-a.box.example.com:1"] {
        for path in ["/v1/sandboxes", "/healthz"] {
            ask(operator, "GET", path, &[("host", unknown)]).await.problem(404, "not_found");
        }
    }
    for head in [
        format!("GET http://{host}/v1/sandboxes HTTP/1.1\r\nhost: api\r\n"),
        format!("GET /v1/sandboxes HTTP/1.1\r\nhost: api\r\nhost: {host}\r\n"),
        format!("GET /v1/sandboxes HTTP/1.1\r\nhost: {host}\r\nhost: api\r\n"),
    ] {
        let mut stream = TcpStream::connect(operator.address).await.unwrap();
        stream.write_all(format!("{head}connection: close\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        timeout(PATIENCE, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    }
    // The host of the setting's own name is the API's as any other.
    let answer = ask(operator, "GET", "/v1/sandboxes", &[("host", "box.example.com")]).await;
    answer.json(200);
    server.stop().await;
}
