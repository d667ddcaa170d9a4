//! Turns that begin while a watch is about to end.

use super::*;

#[test]
fn a_turn_that_begins_while_the_daemon_is_asked_goes_on_being_watched() {
    let turns = Turns::default();
    assert!(turns.begin("a"), "the first is to be watched");
    assert!(!turns.begin("a"), "once");
    turns.ask("a");
    // The daemon answers that nothing works, of a moment before this.
    assert!(!turns.begin("a"));
    assert!(!turns.end("a"), "somebody counts on it");
    turns.ask("a");
    assert!(turns.end("a"));
    assert!(turns.begin("a"), "the next is watched again");
}

#[test]
fn only_what_sets_an_agent_to_work_is_watched() {
    let begins = ["/v1/sessions/s/messages", "/v1/sessions/s/messages/stream"];
    let others = ["/v1/sessions/s", "/v1/sessions/s/events", "/v1/sessions/s/terminate"];
    assert!(begins.into_iter().all(may_begin));
    assert!(!others.into_iter().any(may_begin));
    assert!(may_begin("/v1/sessions/s/permissions/p/reply"));
}
