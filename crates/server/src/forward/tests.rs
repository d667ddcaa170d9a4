use super::*;

#[test]
fn what_needs_a_running_guest_or_the_store_is_answered_anywhere() {
    for (route, expected) in [
        ("/healthz", Place::Anywhere),
        ("/v1/api-keys/{key_id}", Place::Anywhere),
        ("/v1/sandboxes", Place::Leader),
        ("/v1/sandboxes/{id}", Place::Leader),
        ("/v1/sandboxes/{id}/stop", Place::Leader),
        ("/v1/sandboxes/{id}/exec/{exec_id}", Place::Guest),
        ("/v1/sandboxes/{id}/files/import", Place::Guest),
        ("/v1/sandboxes/{id}/something-new", Place::Leader),
        ("/v1/sandboxes/{id}/ports/{port}/{*path}", Place::Port),
        ("/v1/events", Place::Leader),
        ("/v1/sessions", Place::Leader),
        ("/v1/sessions/{id}/ws", Place::Leader),
        ("/v1/tenants/me", Place::Anywhere),
        ("/v1/tenants/me/secrets", Place::Anywhere),
        ("/v1/tenants/me/secrets/{name}", Place::Leader),
    ] {
        assert_eq!(place(route), expected, "{route}");
    }
}

#[test]
fn nothing_is_repeated_that_could_be_done_twice() {
    for (method, route, expected) in [
        (Method::POST, "/v1/sandboxes", true),
        (Method::DELETE, "/v1/sandboxes/{id}", true),
        (Method::POST, "/v1/sandboxes/{id}/start", true),
        (Method::POST, "/v1/sandboxes/{id}/exec", false),
        (Method::POST, "/v1/sandboxes/{id}/exec/stream", false),
        (Method::POST, "/v1/something-new", false),
        (Method::POST, "/v1/sessions", false),
        (Method::POST, "/v1/sessions/resume", true),
        (Method::POST, "/v1/sessions/{id}/token", true),
        (Method::GET, "/v1/sessions/{id}/ws", true),
        (Method::POST, "/v1/sessions/{id}/fork", false),
    ] {
        assert_eq!(is_repeatable(&method, route), expected, "{method} {route}");
    }
}
