//! A log that is written, read, cut off and read again.

use std::io::Write as _;

use events::{ContentPart, ItemKind, ItemRole, UniversalEventData};
use serde_json::json;

use super::Recorder;
use crate::conversion::{Conversion, Item, Raw};

fn message(native: &str, text: &str) -> Item {
    let content = vec![ContentPart::text(text)];
    Item::new(native, ItemKind::Message, ItemRole::Assistant).with_content(content)
}

#[test]
fn what_was_recorded_is_read_again_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events.log");
    let recorder = Recorder::create(&path, "s", true).unwrap();
    recorder.record(Conversion::SessionStarted { metadata: None });
    recorder.begin(json!({"agent": "x"}), Some("native"));
    let raw = Raw::from_line(r#"{"a": [1, 2]}"#).unwrap();
    for n in 0..200 {
        recorder.record_raw(message(&format!("m{n}"), "hello").completed(), &raw);
    }
    let before = recorder.events(true).unwrap();
    drop(recorder);
    // Each message: a start and a delta that were not sent, and the completion.
    assert_eq!(before.len(), 2 + 200 * 3);
    let sequences: Vec<u64> = before.iter().map(|event| event.sequence).collect();
    assert_eq!(sequences, (1..=602).collect::<Vec<_>>());
    assert_eq!(before[601].raw, Some(json!({"a": [1, 2]})));
    assert_eq!(before[600].raw, None, "a synthetic event has no payload");
    assert_eq!(before[0].native_session_id.as_deref(), Some("native"));

    // A crash in the middle of a line.
    let mut file = std::fs::File::options().append(true).open(&path).unwrap();
    file.write_all(b"0000000100. {\"event_id\":\"evt_603\",\"seq").unwrap();
    drop(file);
    let recorder = Recorder::open(&path, "s", true).unwrap();
    assert_eq!(recorder.events(true).unwrap(), before);
    recorder.record(message("m0", "again").completed());
    recorder.record(message("new", "x").started());
    let after = recorder.events(false).unwrap();
    assert_eq!(after.len(), 603, "what was complete is not repeated");
    let UniversalEventData::ItemStarted(data) = &after[602].data else { panic!("{after:?}") };
    assert_eq!(data.item.item_id, "itm_201");
}
