//! What workspaces take, as far as it is known without looking.

use jiff::Timestamp;
use model::WorkspaceId;

use crate::{Fixture, at, owner};

fn workspace(app: &str) -> WorkspaceId {
    WorkspaceId::new(app, "default").unwrap()
}

#[tokio::test]
async fn sizes_are_counted_changed_and_forgotten_each_by_itself() {
    let fixture = Fixture::new();
    let (store, ann, bob) = (&fixture.store, owner("ann"), owner("bob"));
    let (a, b) = (workspace("a"), workspace("b"));
    assert_eq!(store.workspace_size(&ann, &a).await.unwrap(), None);
    assert_eq!(store.workspace_bytes(&ann).await.unwrap(), 0);
    store.change_workspace_size(&ann, &a, (50, 1)).await.unwrap();
    let size = store.workspace_size(&ann, &a).await.unwrap().unwrap();
    assert_eq!((size.bytes, size.files, size.counted_at), (50, 1, Timestamp::UNIX_EPOCH));
    store.set_workspace_size(&ann, &a, (1000, 3), at(1)).await.unwrap();
    store.set_workspace_size(&ann, &b, (7, 1), at(2)).await.unwrap();
    store.set_workspace_size(&bob, &a, (9, 1), at(2)).await.unwrap();
    store.change_workspace_size(&ann, &a, (-400, -1)).await.unwrap();
    let size = store.workspace_size(&ann, &a).await.unwrap().unwrap();
    assert_eq!((size.bytes, size.files, size.counted_at), (600, 2, at(1)));
    assert_eq!(store.workspace_bytes(&ann).await.unwrap(), 607);
    store.change_workspace_size(&ann, &b, (-400, -9)).await.unwrap();
    let size = store.workspace_size(&ann, &b).await.unwrap().unwrap();
    assert_eq!((size.bytes, size.files), (0, 0), "never below nothing");
    store.forget_workspace_size(&ann, &a).await.unwrap();
    assert_eq!(store.workspace_size(&ann, &a).await.unwrap(), None);
    assert_eq!(store.workspace_bytes(&ann).await.unwrap(), 0);
    assert_eq!(store.workspace_bytes(&bob).await.unwrap(), 9);
}
