//! A guest in the process of the test, which ends with the value.

use std::collections::BTreeMap;
use std::path::PathBuf;

use guest_proto::{Address, Guest};
use guestd::{Accounts, Config, Listener, Orphans};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::oneshot;

/// It runs in a thread and a runtime of its own, so that a test that fails ends it too.
pub(crate) struct TestGuest {
    pub(crate) guest: Guest,
    directory: TempDir,
    serving: Option<Serving>,
}

struct Serving {
    stop: oneshot::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl TestGuest {
    /// The user of the test is called `me`, and its home is an empty directory.
    pub(crate) fn start() -> Self {
        let directory = TempDir::new().unwrap();
        std::fs::create_dir(directory.path().join("home")).unwrap();
        let guest = Guest::new(Address::Unix(directory.path().join("socket")));
        let mut guest = Self { guest, directory, serving: None };
        guest.serving = Some(guest.serve());
        guest
    }

    /// All connections are closed.
    pub(crate) fn restart(&mut self) {
        self.stop();
        std::fs::remove_file(self.socket()).unwrap();
        self.serving = Some(self.serve());
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.home().join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    fn serve(&self) -> Serving {
        let (stop, stopped) = oneshot::channel::<()>();
        let (socket, config) = (self.socket(), self.config());
        let listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let thread = std::thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = Listener::Unix(UnixListener::from_std(listener).unwrap());
                let stopped = async { drop(stopped.await) };
                guestd::serve(listener, config, stopped).await.unwrap();
            });
        });
        Serving { stop, thread }
    }

    fn stop(&mut self) {
        let Some(serving) = self.serving.take() else { return };
        let _ = serving.stop.send(());
        let ended = serving.thread.join();
        assert!(ended.is_ok() || std::thread::panicking(), "the guest failed");
    }

    fn config(&self) -> Config {
        let home = self.home().to_str().unwrap().to_owned();
        Config {
            nonce: "a-nonce".into(),
            user: "me".into(),
            workdir: home.clone(),
            env: BTreeMap::from([("FROM_SPEC".into(), "spec".into())]),
            cgroup: None,
            oom_score_adj: None,
            agents: None,
            orphans: Orphans::Leave,
            accounts: self.accounts(&home),
        }
    }

    fn accounts(&self, home: &str) -> Accounts {
        let uid = rustix::process::getuid().as_raw();
        let gid = rustix::process::getgid().as_raw();
        let (passwd, group) =
            (self.directory.path().join("passwd"), self.directory.path().join("group"));
        let me = format!("me:x:{uid}:{gid}:Me:{home}:/bin/sh\n");
        std::fs::write(&passwd, me + "other:x:4242:4242::/:/bin/sh\n").unwrap();
        std::fs::write(&group, format!("mine:x:{gid}:\nothers:x:4243:other\n")).unwrap();
        Accounts::at(passwd.to_str().unwrap(), group.to_str().unwrap())
    }
}

impl Drop for TestGuest {
    fn drop(&mut self) {
        self.stop();
    }
}
