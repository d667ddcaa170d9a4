use super::*;

#[track_caller]
fn check(end: &Value, code: u8) {
    assert_eq!(exit_code(end), code, "{end}");
}

#[test]
fn an_exit_code_is_what_a_shell_would_say() {
    check(&json!({ "exited": true, "status": "exit status 0" }), 0);
    check(&json!({ "exited": true, "exitCode": 7 }), 7);
    check(&json!({ "exitCode": -1, "status": "signal: killed" }), 137);
    check(&json!({ "exitCode": -1, "exited": false, "status": "signal: terminated" }), 143);
    check(&json!({ "exitCode": -1, "status": "signal: segmentation fault" }), 139);
    check(&json!({ "exitCode": -1, "status": "signal: signal 24" }), 152);
    check(&json!({ "exitCode": -1, "status": "lost" }), 1);
}
