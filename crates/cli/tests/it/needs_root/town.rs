//! Several servers on one data directory, each of which can be asked, ended, killed and stopped.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, SystemTime};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::pause;
use crate::cluster::{Cluster, database};
use crate::instance::Instance;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(90);

pub(super) struct Town {
    instance: Option<Instance>,
    key: String,
    servers: BTreeMap<u16, Child>,
    /// Ends after the servers.
    _cluster: Option<Cluster>,
}

/// What a server said.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: Value,
}

/// How to ask one server; may be sent to other threads.
#[derive(Clone)]
pub(super) struct Asker {
    pub(super) port: u16,
    pub(super) key: String,
}

impl Town {
    /// A first server, which leads, on a port of its own.
    pub(super) fn found() -> (Self, u16) {
        Self::found_with(None, |_| ())
    }

    /// The same with its store in `PostgreSQL`, and in test mode.
    pub(super) fn on_postgres() -> (Self, u16) {
        Self::on_postgres_with(|_| ())
    }

    /// With more settings, or files in its data directory.
    pub(super) fn on_postgres_with(prepare: impl FnOnce(&mut Instance)) -> (Self, u16) {
        Self::found_with(Some(Cluster::start()), prepare)
    }

    fn found_with(cluster: Option<Cluster>, prepare: impl FnOnce(&mut Instance)) -> (Self, u16) {
        let bastide = std::path::Path::new(env!("CARGO_BIN_EXE_bastide"));
        let mut instance = Instance::new(bastide).unwrap();
        if let Some(cluster) = &cluster {
            let url = database(cluster.socket(), "town");
            instance.settings.push(("BASTIDE_DATABASE_URL".into(), url));
            instance.settings.push(("BASTIDE_TEST_MODE".into(), "1".into()));
            instance.settings.push(("BASTIDE_LIMITS_CATALOGUE_PER_MINUTE".into(), "5".into()));
        }
        prepare(&mut instance);
        let (instance, servers) = (Some(instance), BTreeMap::new());
        let mut town = Self { instance, key: String::new(), servers, _cluster: cluster };
        let port = town.join();
        town.key = fs::read_to_string(town.data().join("operator.key")).unwrap().trim().to_owned();
        (town, port)
    }

    /// One more server, on a port of its own.
    pub(super) fn join(&mut self) -> u16 {
        let port = free_port();
        self.start(port, &format!("127.0.0.1:{port}"));
        port
    }

    /// One more server, which shares a port with others and has another one of its own.
    pub(super) fn join_at(&mut self, shared: u16) -> u16 {
        let port = free_port();
        self.start(port, &format!("127.0.0.1:{port},127.0.0.1:{shared}"));
        port
    }

    fn start(&mut self, port: u16, listen: &str) {
        let log = fs::File::create(self.log(port)).unwrap();
        let serve = ["serve", "--listen", listen, "--drain-seconds", "20"];
        let mut command = self.instance().command(&serve);
        let server = command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.servers.insert(port, server.spawn().unwrap());
        self.until(port, "answers", |town| {
            let ended = town.servers.get_mut(&port).unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}:\n{}", town.told(port));
            town.try_ask(port, "GET", "/healthz", "").is_some_and(|answer| answer.status == 200)
        });
    }

    fn instance(&self) -> &Instance {
        self.instance.as_ref().expect("it is taken only at the end")
    }

    fn data(&self) -> PathBuf {
        self.instance().data()
    }

    pub(super) fn in_data(&self, name: &str) -> PathBuf {
        self.data().join(name)
    }

    fn log(&self, port: u16) -> PathBuf {
        self.instance().files().unwrap().join(format!("{port}.log"))
    }

    /// Its log.
    pub(super) fn told(&self, port: u16) -> String {
        fs::read_to_string(self.log(port)).unwrap_or_default()
    }

    pub(super) fn asker(&self, port: u16) -> Asker {
        Asker { port, key: self.key.clone() }
    }

    fn try_ask(&self, port: u16, method: &str, path: &str, body: &str) -> Option<Answer> {
        self.asker(port).ask(method, path, body).ok()
    }

    #[track_caller]
    pub(super) fn ask(&self, port: u16, method: &str, path: &str, body: &str) -> Answer {
        self.asker(port).ask(method, path, body).unwrap()
    }

    /// `leader` or `follower`, and the epoch.
    pub(super) fn standing(&self, port: u16) -> (String, u64) {
        self.stands(port).unwrap()
    }

    /// `None` for a server that changes its role just now.
    fn stands(&self, port: u16) -> Option<(String, u64)> {
        let health = self.try_ask(port, "GET", "/healthz", "")?.body;
        Some((health["role"].as_str()?.to_owned(), health["epoch"].as_u64()?))
    }

    /// As `bastide status` shows it.
    pub(super) fn status(&self, port: u16) -> Value {
        let server = format!("http://127.0.0.1:{port}");
        self.instance().json(&["status", "--server", &server]).unwrap()
    }

    pub(super) fn until_leads(&mut self, port: u16) {
        self.until(port, "leads", |town| {
            town.stands(port).is_some_and(|(role, _)| role == "leader")
        });
    }

    /// Which of them leads, as soon as one does.
    pub(super) fn until_any_leads(&mut self, ports: &[u16]) -> u16 {
        let mut leads = None;
        self.until(ports[0], "follows a leader", |town| {
            let is_leader = |port: &&u16| town.stands(**port).is_some_and(|(r, _)| r == "leader");
            leads = ports.iter().find(is_leader).copied();
            leads.is_some()
        });
        leads.unwrap()
    }

    fn until(&mut self, port: u16, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        let begin = SystemTime::now();
        while !holds(self) {
            let late = begin.elapsed().unwrap_or_default() > PATIENCE;
            assert!(!late, "never {what}: {port}\n{}", self.told(port));
            pause();
        }
    }

    pub(super) fn signal(&self, port: u16, signal: Signal) {
        let id = i32::try_from(self.servers[&port].id()).unwrap();
        kill_process(Pid::from_raw(id).unwrap(), signal).unwrap();
    }

    /// `kill -9`.
    pub(super) fn kill(&mut self, port: u16) {
        let mut server = self.servers.remove(&port).unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
    }

    /// Waits for its end, whoever asked for it.
    pub(super) fn ended(&mut self, port: u16) -> ExitStatus {
        let mut ended = None;
        self.until(port, "ends", |town| {
            ended = town.servers.get_mut(&port).unwrap().try_wait().unwrap();
            ended.is_some()
        });
        self.servers.remove(&port);
        ended.unwrap()
    }

    /// SIGTERM, and that it ends well.
    pub(super) fn end(&mut self, port: u16) {
        self.signal(port, Signal::TERM);
        let status = self.ended(port);
        assert!(status.success(), "{status}:\n{}", self.told(port));
    }

    /// The ids that a server lists as not destroyed.
    pub(super) fn listed(&self, port: u16) -> Vec<String> {
        let list = self.ask(port, "GET", "/v1/sandboxes", "");
        assert_eq!(list.status, 200, "{list:?}");
        let all = list.body.as_array().unwrap().iter();
        let live = all.filter(|sandbox| sandbox["state"] != "destroyed");
        let mut ids: Vec<_> = live.map(|one| one["id"].as_str().unwrap().to_owned()).collect();
        ids.sort();
        ids
    }

    /// Removes every sandbox through this server, ends all servers, and looks that nothing is left.
    pub(super) fn close(mut self, port: u16) {
        for id in self.listed(port) {
            assert_eq!(self.ask(port, "DELETE", &format!("/v1/sandboxes/{id}"), "").status, 200);
        }
        for port in self.servers.keys().copied().collect::<Vec<_>>() {
            self.end(port);
        }
        self.instance.take().unwrap().finish().unwrap();
    }
}

impl Drop for Town {
    fn drop(&mut self) {
        for server in self.servers.values_mut() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

impl Asker {
    /// One request on a connection of its own.
    pub(super) fn ask(&self, method: &str, path: &str, body: &str) -> std::io::Result<Answer> {
        self.ask_with("", method, path, body)
    }

    /// With more header lines.
    pub(super) fn ask_with(
        &self,
        headers: &str,
        method: &str,
        path: &str,
        body: &str,
    ) -> std::io::Result<Answer> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(self.request(headers, method, path, body).as_bytes())?;
        let mut text = Vec::new();
        stream.read_to_end(&mut text)?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let broken = || std::io::Error::other(format!("not an answer: {text:?}"));
        let (head, body) = text.split_once("\r\n\r\n").ok_or_else(broken)?;
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        let body = serde_json::from_str(body).unwrap_or_else(|_| Value::String(body.to_owned()));
        Ok(Answer { status: status.ok_or_else(broken)?, head: head.to_ascii_lowercase(), body })
    }

    /// As it goes over the wire.
    pub(super) fn request(&self, headers: &str, method: &str, path: &str, body: &str) -> String {
        format!(
            "{method} {path} HTTP/1.1\r\nHost: town\r\nConnection: close\r\n\
             Authorization: Bearer {}\r\nContent-Length: {}\r\n{headers}\r\n{body}",
            self.key,
            body.len()
        )
    }

    /// The command's output, or why not.
    pub(super) fn exec(&self, id: &str, command: &str) -> Result<String, String> {
        let body = serde_json::json!({ "command": command }).to_string();
        match self.ask("POST", &format!("/v1/sandboxes/{id}/exec"), &body) {
            Ok(answer) if answer.status == 200 => {
                Ok(answer.body["stdout"].as_str().unwrap_or_default().to_owned())
            }
            other => Err(format!("{other:?}")),
        }
    }
}

fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}
