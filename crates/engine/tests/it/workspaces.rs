//! 000's workspaces: what a sandbox leaves is what the next one finds.

use std::path::PathBuf;
use std::time::Duration;

use blobs::Blobs;
use engine::Command;
use futures_util::{StreamExt, TryStreamExt, stream};
use model::{Clocks, Error, NewSandbox, OwnerId, Phase, Tier, WorkspaceId};

use crate::{Fixture, alice, bob, by_id, image, template};
use engine::{Caller, Sandbox};

struct Desk {
    fixture: Fixture,
    blobs: Blobs,
    dir: tempfile::TempDir,
}

fn app() -> WorkspaceId {
    WorkspaceId::new("app", "default").unwrap()
}

fn with_workspace() -> NewSandbox {
    NewSandbox { workspace: Some(app()), ..template() }
}

impl Desk {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let blobs = Blobs::in_directory(&dir.path().join("blobs")).unwrap();
        let given = blobs.clone();
        let fixture = Fixture::with(|config| config.blobs = Some(given)).await;
        Self { fixture, blobs, dir }
    }

    /// Where the files of the workspace are on this host.
    fn files(&self) -> PathBuf {
        self.dir.path().join("blobs/workspaces/usr_alice/app/default/files")
    }

    async fn write(&self, sandbox: &Sandbox, path: &str, text: &str) {
        let bytes = stream::iter([Ok(text.to_owned().into())]);
        let path = format!("/workspace/{path}");
        self.fixture.engine.write_file(&alice(), &by_id(sandbox), &path, bytes).await.unwrap();
    }

    async fn read(&self, caller: &Caller, sandbox: &Sandbox, path: &str) -> Option<String> {
        let path = format!("/workspace/{path}");
        let file = self.fixture.engine.read_file(caller, &by_id(sandbox), &path).await.ok()?;
        let pieces: Vec<_> = file.body.try_collect().await.unwrap();
        Some(String::from_utf8(pieces.concat()).unwrap())
    }

    async fn run(&self, sandbox: &Sandbox, command: &str) -> String {
        let command = Command::shell(command);
        let ran = self.fixture.engine.exec(&alice(), &by_id(sandbox), command).await.unwrap();
        assert_eq!(ran.exit_code, 0, "{ran:?}");
        String::from_utf8_lossy(&ran.stdout).trim().to_owned()
    }

    async fn delete(&self, sandbox: &Sandbox) {
        self.fixture.engine.delete(&alice(), &by_id(sandbox)).await.unwrap();
    }

    async fn stored(&self) -> Vec<String> {
        let owner: OwnerId = "usr_alice".parse().unwrap();
        let all = self.blobs.all(&owner, &app()).map(|object| object.unwrap().key.to_string());
        let mut all: Vec<_> = all.collect().await;
        all.sort();
        all
    }

    /// Lets minutes pass until storage has exactly these.
    async fn saved_until(&self, wanted: &[&str]) {
        for _ in 0..200 {
            self.fixture.pass(61).await;
            if self.stored().await == wanted {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{:?} is not {wanted:?}", self.stored().await);
    }
}

/// Lives as long as a test lets time pass.
fn lasting() -> NewSandbox {
    let asked_clocks = Clocks { auto_stop_minutes: Some(0), ..Clocks::default() };
    NewSandbox { tier: Some(Tier::Persistent), asked_clocks, ..with_workspace() }
}

#[tokio::test]
async fn the_next_sandbox_finds_files_links_modes_and_empty_directories() {
    let desk = Desk::new().await;
    let first = desk.fixture.create(with_workspace()).await.unwrap();
    desk.write(&first, "a", "hello").await;
    desk.run(&first, "mkdir -p d/e 'ü x'; ln -s ../a d/link; chmod 755 a; echo deep > 'ü x/%20'")
        .await;
    desk.delete(&first).await;
    assert_eq!(desk.stored().await, ["a", "ü x/%20"]);

    let second = desk.fixture.create(with_workspace()).await.unwrap();
    assert_eq!(desk.read(&alice(), &second, "a").await.unwrap(), "hello");
    assert_eq!(desk.read(&alice(), &second, "ü x/%20").await.unwrap(), "deep\n");
    assert_eq!(
        desk.run(&second, "readlink d/link; test -x a; test -d d/e; echo ok").await,
        "../a\nok"
    );
    assert_eq!(second.spec.env["WORKSPACE_APP_ID"], "app");
    desk.delete(&second).await;

    let other =
        NewSandbox { workspace: Some(WorkspaceId::new("app", "other").unwrap()), ..template() };
    let other = desk.fixture.create(other).await.unwrap();
    assert_eq!(desk.read(&alice(), &other, "a").await, None);
    let theirs = desk.fixture.engine.create(&bob(), with_workspace(), None).await.unwrap().sandbox;
    assert_eq!(desk.read(&bob(), &theirs, "a").await, None);
}

#[tokio::test]
async fn it_is_saved_every_minute_and_only_what_changed_moves() {
    let desk = Desk::new().await;
    let sandbox = desk.fixture.create(lasting()).await.unwrap();
    desk.write(&sandbox, "same", "1").await;
    desk.write(&sandbox, "gone", "1").await;
    desk.write(&sandbox, "changes", "1").await;
    desk.saved_until(&["changes", "gone", "same"]).await;

    // Whoever writes this file again would undo it.
    std::fs::write(desk.files().join("same"), "not moved").unwrap();
    desk.run(&sandbox, "rm gone; echo 22 > changes; mkdir now; echo 3 > now/a").await;
    desk.saved_until(&["changes", "now/a", "same"]).await;
    let text = |name: &str| std::fs::read_to_string(desk.files().join(name)).unwrap();
    assert_eq!(text("same"), "not moved");
    assert_eq!(text("changes"), "22\n");

    desk.run(&sandbox, "rm -r now; echo 4 > now").await;
    desk.saved_until(&["changes", "now", "same"]).await;
    assert_eq!(text("now"), "4\n");
}

#[tokio::test]
async fn storage_that_fails_keeps_the_sandboxs_copy_until_it_works_again() {
    let desk = Desk::new().await;
    let sandbox = desk.fixture.create(lasting()).await.unwrap();
    desk.write(&sandbox, "a", "precious").await;
    let blobs = desk.dir.path().join("blobs");
    std::fs::rename(&blobs, desk.dir.path().join("away")).unwrap();
    std::fs::write(&blobs, "no directory").unwrap();

    let failure = desk.fixture.engine.delete(&alice(), &by_id(&sandbox)).await.unwrap_err();
    assert!(matches!(failure, Error::Unavailable { .. }), "{failure:?}");
    assert_eq!(desk.fixture.phase(&sandbox).await, Phase::Deleting);
    assert!(desk.fixture.engine.is_mounted(&alice().owner, &app()));
    // Its compute has ended, so nobody pays for it any more.
    desk.fixture.engine_store.settled().await.unwrap();
    assert_eq!(desk.fixture.engine_store.open_legs().await.unwrap(), []);
    desk.fixture.pass(30).await;
    assert_eq!(desk.fixture.phase(&sandbox).await, Phase::Deleting);

    std::fs::remove_file(&blobs).unwrap();
    std::fs::rename(desk.dir.path().join("away"), &blobs).unwrap();
    desk.fixture.swept_until(&sandbox, Phase::Destroyed).await;
    assert_eq!(std::fs::read_to_string(desk.files().join("a")).unwrap(), "precious");
    assert!(!desk.fixture.engine.is_mounted(&alice().owner, &app()));
}

#[tokio::test]
async fn storage_that_cannot_be_read_is_no_empty_workspace() {
    let desk = Desk::new().await;
    let blobs = desk.dir.path().join("blobs");
    std::fs::remove_dir_all(&blobs).unwrap();
    std::fs::write(&blobs, "no directory").unwrap();
    let failure = desk.fixture.create(with_workspace()).await.unwrap_err();
    assert!(matches!(failure, Error::Unavailable { .. }), "{failure:?}");
    desk.fixture.assert_empty().await;
}

#[tokio::test]
async fn a_paused_a_stopped_and_a_restarted_one_are_saved_too() {
    let mut desk = Desk::new().await;
    let engine = |desk: &Desk| desk.fixture.engine.clone();
    for (i, pause) in [true, false].into_iter().enumerate() {
        let sandbox = desk.fixture.create(lasting()).await.unwrap();
        let name = format!("file-{i}");
        desk.write(&sandbox, &name, "x").await;
        let outcome = match pause {
            true => engine(&desk).pause(&alice(), &by_id(&sandbox)).await,
            false => engine(&desk).stop(&alice(), &by_id(&sandbox)).await,
        };
        outcome.unwrap();
        desk.delete(&sandbox).await;
        assert!(desk.stored().await.contains(&name));
    }
    let sandbox = desk.fixture.create(lasting()).await.unwrap();
    desk.write(&sandbox, "kept", "x").await;
    desk.saved_until(&["file-0", "file-1", "kept"]).await;
    desk.fixture.restart().await;
    desk.run(&sandbox, "rm file-0 file-1; echo y > new").await;
    desk.delete(&sandbox).await;
    assert_eq!(desk.stored().await, ["kept", "new"]);
}

#[tokio::test]
async fn without_storage_no_workspace_can_be_asked_for() {
    let fixture = Fixture::new().await;
    let wanted = NewSandbox { workspace: Some(app()), ..image() };
    let refused = fixture.create(wanted).await.unwrap_err();
    let code = "workspace_not_available";
    assert!(matches!(refused, Error::NotImplemented { code: c, .. } if c == code), "{refused:?}");
}

#[tokio::test]
async fn two_that_disagree_about_a_name_both_end_and_the_first_stays() {
    let desk = Desk::new().await;
    let first = desk.fixture.create(with_workspace()).await.unwrap();
    let second = desk.fixture.create(with_workspace()).await.unwrap();
    desk.write(&first, "a", "a file").await;
    desk.run(&second, "mkdir a; echo below > a/b; echo other > c").await;
    desk.delete(&first).await;
    desk.delete(&second).await;
    assert_eq!(desk.stored().await, ["a", "c"]);
    desk.fixture.assert_empty().await;
}

#[tokio::test]
async fn what_is_kept_is_known_without_looking() {
    let desk = Desk::new().await;
    let owner = alice().owner;
    let size = async || {
        let size = desk.fixture.engine_store.workspace_size(&owner, &app()).await.unwrap();
        size.map(|size| (size.bytes, size.files))
    };
    assert_eq!(size().await, None);
    let sandbox = desk.fixture.create(lasting()).await.unwrap();
    assert_eq!(size().await, Some((0, 0)));
    desk.write(&sandbox, "a", "12345").await;
    desk.write(&sandbox, "b", "123").await;
    desk.saved_until(&["a", "b"]).await;
    desk.run(&sandbox, "rm b; printf 1234567 > a; printf 1 > c").await;
    desk.delete(&sandbox).await;
    assert_eq!(size().await, Some((8, 2)));
    let next = desk.fixture.create(with_workspace()).await.unwrap();
    assert_eq!(size().await, Some((8, 2)));
    desk.delete(&next).await;
}
