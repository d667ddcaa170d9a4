//! A guest in the process of the test, which ends with the value.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use guest_proto::{Address, Guest};
use guestd::{Accounts, Config, Listener, Orphans};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

pub(crate) struct TestGuest {
    pub(crate) guest: Guest,
    pub(crate) directory: TempDir,
    stop: Arc<Notify>,
    serving: Option<JoinHandle<std::io::Result<()>>>,
}

impl TestGuest {
    /// Must be called in a runtime of one thread or of many. The user of the test is called `me`,
    /// and its home is an empty directory.
    pub(crate) fn start() -> Self {
        let directory = TempDir::new().unwrap();
        let home = directory.path().join("home");
        std::fs::create_dir(&home).unwrap();
        let socket = directory.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let config = Config {
            nonce: "a-nonce".into(),
            user: "me".into(),
            workdir: home.to_str().unwrap().into(),
            env: BTreeMap::from([("FROM_SPEC".into(), "spec".into())]),
            cgroup: None,
            oom_score_adj: None,
            orphans: Orphans::Leave,
            accounts: accounts(&directory, home.to_str().unwrap()),
        };
        let stop = Arc::new(Notify::new());
        let stopped = Arc::clone(&stop);
        let stop_asked = async move { stopped.notified().await };
        #[expect(clippy::disallowed_methods, reason = "the test waits for it in close")]
        let serving = tokio::spawn(guestd::serve(Listener::Unix(listener), config, stop_asked));
        let guest = Guest::new(Address::Unix(socket));
        Self { guest, directory, stop, serving: Some(serving) }
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
}

impl Drop for TestGuest {
    fn drop(&mut self) {
        self.stop.notify_one();
        drop(self.serving.take());
    }
}

fn accounts(directory: &TempDir, home: &str) -> Accounts {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let passwd = directory.path().join("passwd");
    let group = directory.path().join("group");
    std::fs::write(
        &passwd,
        format!("me:x:{uid}:{gid}:Me:{home}:/bin/sh\nother:x:4242:4242::/:/bin/sh\n"),
    )
    .unwrap();
    std::fs::write(&group, format!("mine:x:{gid}:\nothers:x:4243:other\n")).unwrap();
    Accounts::at(passwd.to_str().unwrap(), group.to_str().unwrap())
}
