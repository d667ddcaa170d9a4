//! What its lines become, and what becomes of those that are none of its.

use deictic::protocol::{Item, Said, TurnStatus};
use events::{ContentPart, ItemKind, ItemRole, ItemStatus};
use serde_json::json;

use super::decoder::Decoder;
use crate::agents::decoded::Decoded;
use crate::conversion::Conversion;

fn item(id: &str) -> Item {
    Item {
        id: id.to_owned(),
        parent: None,
        kind: ItemKind::Message,
        role: Some(ItemRole::Assistant),
        content: vec![ContentPart::text("x")],
        status: ItemStatus::InProgress,
    }
}

fn decode(decoder: &mut Decoder, said: &Said) -> Vec<Decoded> {
    decoder.decode(&serde_json::to_value(said).unwrap())
}

#[test]
fn what_is_open_at_the_end_of_a_turn_has_failed() {
    let mut decoder = Decoder::default();
    decode(&mut decoder, &Said::ItemStarted { item: item("a") });
    let asked = Said::PermissionRequested {
        id: "p".to_owned(),
        action: "shell_exec".to_owned(),
        metadata: json!({}),
    };
    decode(&mut decoder, &asked);
    let over = Said::TurnOver { status: TurnStatus::Interrupted, steps: 1 };
    let decoded = decode(&mut decoder, &over);
    let [Decoded::Record(Conversion::ItemCompleted(item)), Decoded::Record(permission), last] =
        &decoded[..]
    else {
        panic!("{decoded:?}");
    };
    assert_eq!((item.native_id.as_deref(), item.status), (Some("a"), ItemStatus::Failed));
    let denied = Conversion::PermissionResolved { id: "p".to_owned(), approved: false };
    assert_eq!(*permission, denied);
    assert_eq!(*last, Decoded::TurnOver(json!({"status": "interrupted", "num_steps": 1})));
    assert!(!decoder.permit("p"), "nobody waits for it any more");
    assert_eq!(decoder.close(), []);
}

#[test]
fn what_is_not_known_is_a_status() {
    let mut decoder = Decoder::default();
    for line in [json!({"type": "later_version"}), json!(7), json!({"type": "item_started"})] {
        let decoded = decoder.decode(&line);
        assert!(matches!(&decoded[..], [Decoded::Record(Conversion::ItemCompleted(_))]));
    }
}
