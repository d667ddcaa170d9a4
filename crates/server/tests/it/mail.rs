//! How codes get to people: the mailbox directory, SMTP, and SES, the last two against small doubles.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::client::PATIENCE;
use crate::harness::{Setup, TestServer};

/// The six digits of a mail.
fn code_in(mail: &str) -> String {
    let after = mail.split_once("Your code is ").expect("a code").1;
    after.chars().take(6).collect()
}

fn mails(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir.join("mail")) else { return Vec::new() };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect()
}

async fn sign_up(server: &TestServer, email: &str, code: &str) {
    let asked = json!({ "email": email, "code": code });
    server.nobody().post("/v1/tenants/verify", &asked).await.json(200);
}

#[tokio::test]
async fn with_nothing_configured_a_mail_is_a_file_for_its_owner_alone() {
    let server = TestServer::start().await;
    let asked = json!({ "email": "ann@example.com" });
    server.nobody().post("/v1/tenants", &asked).await.json(200);
    let mail = mails(server.dir.path()).remove(0);
    assert!(mail.contains("To: ann@example.com"), "{mail}");
    for path in std::fs::read_dir(server.dir.path().join("mail")).unwrap() {
        let mode = path.unwrap().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    sign_up(&server, "ann@example.com", &code_in(&mail)).await;
    // Signing in: for who has an account.
    for email in ["zoe@example.com", "ann@example.com"] {
        let asked = json!({ "email": email });
        server.nobody().post("/v1/auth/login", &asked).await.json(201);
    }
    let dir = server.dir.clone();
    server.stop().await;
    let mails = mails(dir.path());
    assert_eq!(mails.len(), 2, "what was on its way is sent before the end");
    assert!(mails.iter().all(|mail| mail.contains("To: ann@example.com")), "{mails:?}");
}

#[tokio::test]
async fn a_code_goes_out_over_smtp() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let inbox = TaskTracker::new().spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        smtp(stream).await
    });
    let settings = format!("[mail]\nsmtp_url = 'smtp://{address}'\nfrom = 'Town <t@example.org>'");
    let server = Setup::with(&settings).start().await;
    let asked = json!({ "email": "ann@example.com" });
    server.nobody().post("/v1/tenants", &asked).await.json(200);
    let said = timeout(PATIENCE, inbox).await.unwrap().unwrap();
    assert!(said.contains("MAIL FROM:<t@example.org>"), "{said}");
    assert!(said.contains("RCPT TO:<ann@example.com>"), "{said}");
    sign_up(&server, "ann@example.com", &code_in(&said)).await;
    server.stop().await;
}

#[tokio::test]
async fn a_code_goes_out_through_ses() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let ses = TaskTracker::new().spawn(async move {
        let first = http(&listener, 200).await;
        (first, http(&listener, 400).await)
    });
    let settings = format!(
        "[mail]\nses_region = 'eu-west-1'\nses_endpoint = 'http://{address}'\n\
         ses_access_key_id = 'AKIDEXAMPLE'\nses_secret_access_key = 'very-secret'\n\
         from = 't@example.org'"
    );
    let server = Setup::with(&settings).start().await;
    let asked = json!({ "email": "ann@example.com" });
    server.nobody().post("/v1/tenants", &asked).await.json(200);
    server.nobody().post("/v1/tenants", &asked).await.problem(500, "internal");
    let ((head, body), _) = timeout(PATIENCE, ses).await.unwrap().unwrap();
    assert!(head.starts_with("POST /v2/email/outbound-emails HTTP/1.1\r\n"), "{head}");
    let scope =
        "/eu-west-1/ses/aws4_request, SignedHeaders=content-type;host;x-amz-date, Signature=";
    assert!(head.contains("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/") && head.contains(scope));
    assert!(!head.contains("very-secret"));
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["FromEmailAddress"], "t@example.org");
    assert_eq!(body["Destination"]["ToAddresses"], json!(["ann@example.com"]));
    let text = body["Content"]["Simple"]["Body"]["Text"]["Data"].as_str().unwrap();
    assert_eq!(code_in(text).len(), 6);
    server.stop().await;
}

#[tokio::test]
async fn a_mail_server_that_is_not_there_is_a_500_and_no_code_is_told() {
    let address = {
        let gone = TcpListener::bind("127.0.0.1:0").await.unwrap();
        gone.local_addr().unwrap()
    };
    let server = Setup::with(&format!("[mail]\nsmtp_url = 'smtp://{address}'")).start().await;
    let nobody = server.nobody();
    for path in ["/v1/tenants", "/v1/auth/register"] {
        nobody.post(path, &json!({ "email": "ann@example.com" })).await.problem(500, "internal");
    }
    // Nobody learns from it who has an account.
    nobody.post("/v1/auth/login", &json!({ "email": "ann@example.com" })).await.json(201);
    server.stop().await;
}

/// Takes one mail; answers with all that was said.
async fn smtp(stream: TcpStream) -> String {
    let mut stream = BufReader::new(stream);
    stream.write_all(b"220 double\r\n").await.unwrap();
    let (mut said, mut in_data) = (String::new(), false);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.unwrap() == 0 {
            return said;
        }
        said.push_str(&line);
        let answer: &[u8] = match line.trim_end() {
            "." => {
                in_data = false;
                b"250 taken\r\n"
            }
            _ if in_data => continue,
            "DATA" => {
                in_data = true;
                b"354 go on\r\n"
            }
            "QUIT" => b"221 bye\r\n",
            _ => b"250 ok\r\n",
        };
        stream.write_all(answer).await.unwrap();
        if line.trim_end() == "." {
            return said;
        }
    }
}

/// One request, as its head and body.
async fn http(listener: &TcpListener, status: u16) -> (String, String) {
    let (stream, _) = listener.accept().await.unwrap();
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(stream.read_line(&mut head).await.unwrap() > 0);
    }
    let length = head.to_ascii_lowercase();
    let length = length.split("content-length: ").nth(1).unwrap();
    let length: usize = length.lines().next().unwrap().parse().unwrap();
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.unwrap();
    let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: 2\r\n\r\n{{}}");
    stream.write_all(answer.as_bytes()).await.unwrap();
    (head, String::from_utf8(body).unwrap())
}
