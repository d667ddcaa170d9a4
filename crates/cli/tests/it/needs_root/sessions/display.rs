//! The display of a session with the template `cua`: what a client does to it is done, and it sees it.

use std::path::Path;

use serde_json::json;

use super::town::Town;
use crate::model::KEY;
use crate::needs_root::pause;

/// Looks at what is typed.
const TERMINAL: &str = "xterm -geometry 80x24+100+100 -e 'cat > /tmp/typed' >/dev/null 2>&1 &";
/// Says what the mouse does.
const TESTER: &str = "xev -geometry 300x300+700+300 >/tmp/events 2>&1 &";

/// With the templates of this data directory.
pub(in crate::needs_root) fn a_client_sees_the_display_and_uses_it(built: &Path) {
    let town = Town::with(built);
    town.bundle("POST", &json!({ "LLM_API_KEY": KEY }));
    let session = town.create("mock", &json!({ "template": "cua" }));
    let mut talk = session.connect(0);
    talk.exec("desktop-ready");
    let empty = talk.screenshot();
    assert_eq!(size(&empty), (1280, 800));

    talk.exec(TERMINAL);
    until(|| !talk.exec("xdotool search --onlyvisible --class xterm").is_empty());
    // More letters that no key has than there are keys without one.
    let text = "--words & 'quotes' $HOME ünï Съешь ещё этих мягких французских булок";
    let long = "x".repeat(2000);
    for frame in [
        json!({ "type": "mouse_click", "x": 300, "y": 250 }),
        json!({ "type": "keyboard_type", "text": long }),
        json!({ "type": "press_key", "key": "Return" }),
        json!({ "type": "keyboard_type", "text": text }),
        json!({ "type": "press_key", "key": "Return" }),
        json!({ "type": "press_key", "key": "ctrl+d" }),
    ] {
        talk.send(&frame);
    }
    // Nothing else waits for what is typed.
    until(|| !talk.exec("pgrep -x xdotool").is_empty());
    // The end of the input is the end of the window.
    until(|| talk.exec("cat /tmp/typed") == format!("{long}\n{text}\n"));

    talk.exec(TESTER);
    until(|| !talk.exec("xdotool search --onlyvisible --name 'Event Tester'").is_empty());
    let shown = talk.screenshot();
    assert_eq!(size(&shown), (1280, 800));
    assert!(shown.len() > empty.len(), "a window can be seen");
    talk.send(&json!({ "type": "mouse_move", "x": 790, "y": 450 }));
    until(|| talk.exec("xdotool getmouselocation").starts_with("x:790 y:450 "));
    for frame in [
        json!({ "type": "scroll", "x": 800, "y": 450, "clicks": 2 }),
        json!({ "type": "scroll", "x": 800, "y": 450, "clicks": -1 }),
        json!({ "type": "mouse_click", "x": 801, "y": 451, "button": 3 }),
    ] {
        talk.send(&frame);
    }
    let buttons = "grep -A3 ButtonPress /tmp/events | grep -o 'button [0-9]' | tr -dc 0-9";
    until(|| talk.exec(buttons) == "5543");

    talk.send(&json!({ "type": "press_key", "key": "no; such" }));
    assert_eq!(talk.refusal()["code"], "invalid_frame");

    talk.exec(TERMINAL);
    until(|| !talk.exec("xdotool search --onlyvisible --class xterm").is_empty());
    for frame in [
        json!({ "type": "mouse_click", "x": 300, "y": 250 }),
        json!({ "type": "keyboard_type", "text": long }),
        json!({ "type": "press_key", "key": "Return" }),
        json!({ "type": "press_key", "key": "ctrl+d" }),
    ] {
        talk.send(&frame);
    }
    // What a client said is done, also when it does not stay for it.
    drop(talk);
    until(|| town.exec(&session, "cat /tmp/typed") == format!("{long}\n"));
    town.delete(&session);
    town.end();
}

/// As a PNG says it.
#[track_caller]
fn size(image: &[u8]) -> (u32, u32) {
    assert_eq!(image[..8], *b"\x89PNG\r\n\x1a\n");
    let number = |at: usize| u32::from_be_bytes(image[at..at + 4].try_into().unwrap());
    (number(16), number(20))
}

#[track_caller]
fn until(mut holds: impl FnMut() -> bool) {
    for _ in 0..500 {
        if holds() {
            return;
        }
        pause();
    }
    panic!("never");
}
