//! A daemon on a free port, and a client that shows the whole answer.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use agentd::{Config, Cors, Token};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

const ANSWER_MAX: Duration = Duration::from_secs(60);

pub(crate) struct Daemon {
    address: SocketAddr,
    stop: CancellationToken,
    tasks: TaskTracker,
}

#[derive(Default)]
pub(crate) struct Setup {
    pub(crate) token: Option<&'static str>,
    pub(crate) cors: Option<Cors>,
    pub(crate) mock_delay: Duration,
    /// Variables for agents.
    pub(crate) environment: Vec<(&'static str, String)>,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

impl Daemon {
    pub(crate) async fn start(data_dir: &Path, setup: Setup) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        // No agent is found, and nothing outside is reached.
        let environment = [
            ("PATH", "/nonexistent"),
            ("NPM_CONFIG_REGISTRY", "http://127.0.0.1:1/"),
            ("npm_config_registry", "http://127.0.0.1:1/"),
        ];
        let environment = environment.map(|(name, value)| (name, value.to_owned()));
        let environment = environment.into_iter().chain(setup.environment);
        let environment = environment.map(|(name, value)| (name.into(), value.into()));
        let config = Config {
            data_dir: data_dir.to_owned(),
            directory: data_dir.to_owned(),
            environment: environment.collect(),
            token: setup.token.map(Token::new),
            task: None,
            cors: setup.cors,
            patience: Duration::from_millis(100),
            adopt_orphans: false,
            mock_delay: setup.mock_delay,
            deictic: vec![env!("CARGO_BIN_EXE_agentd").into(), "deictic".into()],
        };
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let stopped = stop.clone();
        tasks.spawn(async move {
            agentd::serve(listener, config, stopped.cancelled_owned()).await.unwrap();
        });
        Self { address, stop, tasks }
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        timeout(ANSWER_MAX, self.tasks.wait()).await.expect("it stops");
    }

    /// The answer, up to its end, or what came of it when it has been quiet for `quiet`.
    pub(crate) async fn send(
        &self,
        request: &str,
        headers: &[(String, String)],
        body: Option<&str>,
        quiet: Duration,
    ) -> Answer {
        let mut stream = self.open(request, headers, body).await;
        let mut text = Vec::new();
        while let Ok(Ok(1..)) = timeout(quiet, stream.read_buf(&mut text)).await {}
        parse(&text)
    }

    /// A connection on which the answer will come.
    pub(crate) async fn open(
        &self,
        request: &str,
        headers: &[(String, String)],
        body: Option<&str>,
    ) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let mut text = format!("{request} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n");
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        let length = body.map_or(0, str::len);
        text += &format!("content-length: {length}\r\n\r\n{}", body.unwrap_or_default());
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let answer = self.send(&format!("GET {path}"), &[], None, ANSWER_MAX).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        serde_json::from_str(&answer.body).unwrap()
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        let headers = [("content-type".to_owned(), "application/json".to_owned())];
        let text = body.to_string();
        self.send(&format!("POST {path}"), &headers, Some(&text), ANSWER_MAX).await
    }

    /// Until no turn of the session runs or waits.
    pub(crate) async fn wait_idle(&self, id: &str) {
        let idle = async {
            loop {
                let list = self.get("/v1/sessions").await;
                let sessions = list["sessions"].as_array().unwrap();
                let found = sessions.iter().find(|one| one["sessionId"] == id).cloned().unwrap();
                if found.get("busy").is_none() && found.get("queued").is_none() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(ANSWER_MAX, idle).await.expect("the turn ends");
    }
}

pub(crate) fn parse(text: &[u8]) -> Answer {
    let text = String::from_utf8_lossy(text).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").expect("an answer has a head");
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers: BTreeMap<String, String> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let chunked = headers.get("transfer-encoding").is_some_and(|value| value == "chunked");
    let body = if chunked { dechunk(body) } else { body.to_owned() };
    Answer { status, headers, body }
}

fn dechunk(mut text: &str) -> String {
    let mut out = String::new();
    while let Some((size, rest)) = text.split_once("\r\n") {
        let Ok(size @ 1..) = usize::from_str_radix(size, 16) else { break };
        let Some(chunk) = rest.get(..size) else { break };
        out += chunk;
        text = rest.get(size + 2..).unwrap_or("");
    }
    out
}
