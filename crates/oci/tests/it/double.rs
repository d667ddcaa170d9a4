//! A registry on loopback: what the distribution specification asks for, faults on demand, and a
//! record of what it was sent.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "support of tests: a panic is how it tells"
)]

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sha2::{Digest, Sha256};

/// One thing that goes wrong with the next request whose path contains a word.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    Status(u16, &'static str),
    /// The connection ends after so many bytes of the body.
    Cut(usize),
    /// Other bytes of the same length.
    Lie,
    /// A pause in the middle of the body.
    Pause(Duration),
    /// The body as a redirect to itself on another port.
    Redirect(SocketAddr),
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
}

#[derive(Default)]
struct State {
    content: BTreeMap<String, (String, Vec<u8>)>,
    faults: VecDeque<(String, Fault)>,
    seen: Vec<Seen>,
    /// What `Authorization` must be, and where the token comes from.
    token: Option<&'static str>,
    login: Option<&'static str>,
    no_ranges: bool,
}

#[derive(Clone)]
pub(crate) struct Double {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Double {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let double = Self { address, state: Arc::default() };
        let served = double.clone();
        // Ends with the process of the test.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let served = served.clone();
                std::thread::spawn(move || served.serve(&stream));
            }
        });
        double
    }

    pub(crate) fn reference(&self, tail: &str) -> oci::Reference {
        format!("{}/team/app{tail}", self.address).parse().unwrap()
    }

    pub(crate) fn put(&self, path: &str, kind: &str, bytes: Vec<u8>) {
        let path = format!("/v2/team/app/{path}");
        self.state.lock().unwrap().content.insert(path, (kind.to_owned(), bytes));
    }

    pub(crate) fn blob(&self, bytes: Vec<u8>) -> String {
        let digest = digest(&bytes);
        self.put(&format!("blobs/{digest}"), "application/octet-stream", bytes);
        digest
    }

    pub(crate) fn fault(&self, path: &str, fault: Fault) {
        self.state.lock().unwrap().faults.push_back((path.to_owned(), fault));
    }

    pub(crate) fn want_token(&self, login: Option<&'static str>) {
        let mut state = self.state.lock().unwrap();
        state.token = Some("Bearer let-me-in");
        state.login = login;
    }

    pub(crate) fn want_basic(&self, login: &'static str) {
        self.state.lock().unwrap().token = Some(login);
    }

    pub(crate) fn without_ranges(&self) {
        self.state.lock().unwrap().no_ranges = true;
    }

    /// Requests whose path contains `word`.
    pub(crate) fn seen(&self, word: &str) -> Vec<Seen> {
        let state = self.state.lock().unwrap();
        state.seen.iter().filter(|seen| seen.path.contains(word)).cloned().collect()
    }

    fn serve(&self, stream: &TcpStream) {
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        let Some(first) = lines.next() else { return };
        let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
        let headers: BTreeMap<String, String> = lines
            .take_while(|line| !line.is_empty())
            .filter_map(|line| {
                let (name, value) = line.split_once(':')?;
                Some((name.to_ascii_lowercase(), value.trim().to_owned()))
            })
            .collect();
        let seen = Seen { path: path.clone(), headers };
        // A client that hangs up early is part of the tests.
        let _ = self.answer(stream, &seen);
    }

    fn answer(&self, mut out: &TcpStream, seen: &Seen) -> std::io::Result<()> {
        let mut state = self.state.lock().unwrap();
        state.seen.push(seen.clone());
        let authorization = seen.headers.get("authorization").map(String::as_str);
        if let Some(query) = seen.path.strip_prefix("/token?") {
            let good = query.contains("scope=repository%3Ateam%2Fapp%3Apull")
                && query.contains("service=double")
                && state.login.is_none_or(|login| authorization == Some(login));
            let body: &[u8] = if good { br#"{"token": "let-me-in"}"# } else { b"{}" };
            return whole(&mut out, if good { 200 } else { 401 }, "", body);
        }
        if state.token.is_some() && authorization != state.token {
            let address = self.address;
            let wanted = match state.token {
                Some(token) if token.starts_with("Basic") => "Basic realm=\"double\"".to_owned(),
                _ => format!("Bearer realm=\"http://{address}/token\",service=\"double\""),
            };
            return whole(&mut out, 401, &format!("WWW-Authenticate: {wanted}\r\n"), b"{}");
        }
        let at = state.faults.iter().position(|(word, _)| seen.path.contains(word.as_str()));
        let fault = at.and_then(|at| state.faults.remove(at)).map(|(_, fault)| fault);
        let Some((kind, bytes)) = state.content.get(&seen.path).cloned() else {
            let unknown = br#"{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "not here"}]}"#;
            return whole(&mut out, 404, "", unknown);
        };
        let ranges = !state.no_ranges;
        drop(state);
        let from = seen.headers.get("range").filter(|_| ranges);
        let from = from.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'));
        let from: Option<usize> = from.map(|from| from.parse().unwrap());
        let mut body = bytes[from.unwrap_or(0)..].to_vec();
        let (status, mut head) = match from {
            Some(from) => (
                206,
                format!("Content-Range: bytes {from}-{}/{}\r\n", bytes.len() - 1, bytes.len()),
            ),
            None => (200, String::new()),
        };
        head.push_str(&format!("Content-Type: {kind}\r\n"));
        match fault {
            None => whole(&mut out, status, &head, &body),
            Some(Fault::Status(status, extra)) => whole(&mut out, status, extra, b"{}"),
            Some(Fault::Redirect(to)) => {
                let location = format!("Location: http://{to}{}\r\n", seen.path);
                whole(&mut out, 307, &location, b"")
            }
            Some(Fault::Lie) => {
                body.iter_mut().for_each(|byte| *byte ^= 1);
                whole(&mut out, status, &head, &body)
            }
            Some(Fault::Cut(count)) => {
                begin(&mut out, status, &head, body.len())?;
                out.write_all(&body[..count.min(body.len())])
            }
            Some(Fault::Pause(pause)) => {
                begin(&mut out, status, &head, body.len())?;
                let (one, two) = body.split_at(body.len() / 2);
                out.write_all(one)?;
                std::thread::sleep(pause);
                out.write_all(two)
            }
        }
    }
}

fn begin(out: &mut &TcpStream, status: u16, head: &str, length: usize) -> std::io::Result<()> {
    write!(
        out,
        "HTTP/1.1 {status} X\r\n{head}Content-Length: {length}\r\nConnection: close\r\n\r\n"
    )
}

fn whole(out: &mut &TcpStream, status: u16, head: &str, body: &[u8]) -> std::io::Result<()> {
    begin(out, status, head, body.len())?;
    out.write_all(body)
}

pub(crate) fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}
