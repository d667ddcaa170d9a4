//! What the store has a part in, once more on `PostgreSQL`.

use crate::again::run_again_on_postgres;

#[test]
fn accounts_and_keys_are_the_same_on_postgresql() {
    let modules = ["sign_in::", "keys::", "mail::", "oidc::", "--test-threads", "4"];
    run_again_on_postgres(&modules);
}

#[test]
fn claims_quotas_and_events_are_the_same_on_postgresql() {
    let modules = ["tenancy::", "organisations::", "quotas::", "idempotency::", "events::"];
    run_again_on_postgres(&[&modules[..], &["--test-threads", "4"]].concat());
}

#[test]
fn money_usage_and_sql_in_strings_are_the_same_on_postgresql() {
    let modules = ["billing::", "usage::", "sql::", "--test-threads", "4"];
    run_again_on_postgres(&modules);
}

#[test]
fn sessions_are_the_same_on_postgresql() {
    let modules =
        ["sessions::life::", "sessions::resume::", "sessions::told::", "--test-threads", "4"];
    run_again_on_postgres(&modules);
}

#[test]
fn sessions_on_two_servers_are_the_same_on_postgresql() {
    run_again_on_postgres(&["sessions::replicas::", "sessions::race::", "--test-threads", "2"]);
}

#[test]
fn nothing_is_lost_with_two_servers_on_postgresql() {
    run_again_on_postgres(&["sessions::loss::nothing_is_lost_with_two_servers"]);
}
